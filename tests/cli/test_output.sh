#!/bin/sh
# results that cannot be written, wrong command lines and odd terminals: exit status, JSON and text say so
. tests/cli/lib.sh
dir=$(model tiny-llama)

# A result that does not arrive is no success.
for c in "help" "load --help" "inspect $dir/model.safetensors" "inspect --json $dir/model.safetensors" "verify $dir"; do
    got=0
    "$cairn" $c >/dev/full 2>"$scratch/err" || got=$?
    [ "$got" = 1 ] || die "cairn $c into a full disk: exit status $got"
    err_has "could not be written"
done
got=0
echo '[1, 2]' | "$cairn" tokenize --decode "$dir" >/dev/full 2>"$scratch/err" || got=$?
[ "$got" = 1 ] || die "tokenize into a full disk: exit status $got"

# A reader that has seen enough ends the command without a word.
"$cairn" inspect "$dir/model.safetensors" 2>"$scratch/err" | head -1 >"$scratch/out"
out_has "safetensors"
[ ! -s "$scratch/err" ] || die "a closed pipe is told"

# --json: one value on standard output, also when the command line is wrong.
expect_exit 2 "$cairn" load --json
[ "$(jq -r .error.code "$scratch/out")" = usage ] || die "a wrong command line is not told as JSON"
expect_exit 2 "$cairn" load --json --nonsense x
jq -e '.error.message | contains("--nonsense")' "$scratch/out" >/dev/null || die "the option is not named"
expect_exit 1 "$cairn" verify --json "$scratch/none"
out_is_json
expect_exit 2 "$cairn" chat -m hi
err_has "unknown option: -m"

# Standard streams that are closed do not become the next file: nothing is written into it.
closed=$scratch/closed
env STATE_DIR="$closed" WEIGHTS_CHECKPOINT_DIR="$closed/checkpoints" "$cairn" serve --port 0 <&- >&- 2>&- &
other=$!
for _ in $(seq 200); do [ -e "$closed/cairn.db" ] && break; sleep 0.05; done
kill "$other"
wait "$other" || die "the server ended with exit status $?"
[ ! -s "$closed/cairn.lock" ] || die "the lock holds $(cat "$closed/cairn.lock")"
got=0
"$cairn" help >&- 2>"$scratch/err" || got=$?
[ "$got" = 1 ] || die "help without an output: exit status $got"

# A number that is out of range reaches the server, and is refused by name.
start_server
export CAIRN_TOKEN=$token
expect_exit 0 "$cairn" status
out_has "none; .cairn load MODEL. loads one"
expect_exit 0 "$cairn" models add "$dir" --name tiny
expect_exit 0 "$cairn" load tiny
for o in temperature=-1 top-p=-1 max-tokens=-1 seed=-1; do
    expect_exit 1 "$cairn" complete hi "--$o"
    err_has "$(echo "${o%%=*}" | tr - _)"
done
expect_exit 1 "$cairn" lease tiny take --ttl 0
err_has ttl_seconds
expect_exit 1 "$cairn" load --model-id 0
err_has "no model 0"

# A conversation has one JSON line for each answer.
printf 'one\ntwo\n' | "$cairn" chat --json --max-tokens 2 >"$scratch/out"
[ "$(jq -s length "$scratch/out")" = 2 ] && [ "$(wc -l <"$scratch/out")" = 2 ] || die "a conversation is not one line an answer"

# What the server says of headers is said of options, too.
CAIRN_TOKEN=wrong expect_exit 1 "$cairn" save demo 1
err_has "UNAUTHORIZED: .*(--token, or CAIRN_TOKEN)$"
CAIRN_ATTACHMENT=$(curl -s "$CAIRN_URL/api/weights/attach" -H "Authorization: Bearer $token" -H 'Content-Type: application/json' -d '{}' | jq -r .data.attachment_id)
expect_exit 1 "$cairn" save demo 1
err_has "NOT_ATTACHMENT_HOLDER: .*(--attachment, or CAIRN_ATTACHMENT)$"
expect_exit 0 "$cairn" detach --attachment "$CAIRN_ATTACHMENT"

# A proxy of the environment has no part in what this machine asks itself.
http_proxy=http://127.0.0.1:9 expect_exit 0 "$cairn" status

# The server says where it listens as JSON, too.
env STATE_DIR="$scratch/json" WEIGHTS_CHECKPOINT_DIR="$scratch/json/checkpoints" "$cairn" serve --port 0 --json >"$scratch/json.out" 2>/dev/null &
other=$!
for _ in $(seq 200); do [ -s "$scratch/json.out" ] && break; sleep 0.05; done
kill "$other"
wait "$other" || die "the server ended with exit status $?"
"$cairn" status --url "$(jq -r .listening "$scratch/json.out")" 2>/dev/null && die "it still answers"
jq -e '.listening | startswith("http://127.0.0.1:")' "$scratch/json.out" >/dev/null || die "$(cat "$scratch/json.out")"

# A progress bar has the width that the terminal leaves it; a terminal that cannot move the cursor has none.
on_terminal() { # COLUMNS: what inspect draws
    script -qec "stty cols $1; $cairn inspect $dir/model.safetensors" /dev/null >"$scratch/drawn" 2>&1 || die "no terminal"
}
TERM=xterm on_terminal 100
grep -q '\[####*\.*\]' "$scratch/drawn" || die "no bar on a wide terminal"
TERM=xterm on_terminal 30
grep -q '#' "$scratch/drawn" && die "a bar on a narrow terminal"
grep -q '%' "$scratch/drawn" || die "no progress on a narrow terminal"
TERM=dumb on_terminal 100
grep -q '#' "$scratch/drawn" && die "a bar on a dumb terminal"
exit 0
