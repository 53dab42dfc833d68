#!/bin/sh
# the example trainer answers a line a line, says what a line may be, and is detached when it is interrupted
. tests/cli/lib.sh
start_server
export CAIRN_TOKEN=$token
"$cairn" models add "$(model tiny-llama)" --name tiny >/dev/null
"$cairn" load tiny >/dev/null

printf 'digest\nhello\nstep without an answer\ndigest\nquit\n' >"$scratch/lines"
expect_exit 0 examples/trainer.py <"$scratch/lines"
[ "$(wc -l <"$scratch/out")" = 3 ] || die "not one line for each answer: $(cat "$scratch/out")"
[ "$(sed 1d "$scratch/out" | sort -u | wc -l)" = 1 ] || die "the weights changed without a step"
[ "$(grep -c 'step QUESTION => ANSWER' "$scratch/err")" = 2 ] || die "it does not say what a line may be"

mkfifo "$scratch/typed"
env --default-signal=INT examples/trainer.py <"$scratch/typed" >"$scratch/out" 2>"$scratch/err" &
trainer=$!
exec 3>"$scratch/typed"
for _ in $(seq 200); do grep -q ^attached "$scratch/out" && break; sleep 0.05; done
kill -INT "$trainer"
got=0
wait "$trainer" || got=$?
exec 3>&-
[ "$got" = 130 ] || die "interrupted: exit status $got"
[ ! -s "$scratch/err" ] || die "interrupted, it says: $(cat "$scratch/err")"
expect_exit 0 "$cairn" attach-status
out_has "nothing is attached"
