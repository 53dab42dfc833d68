#!/bin/sh
# backup and restore, another machine, a removed step, a lost catalogue: the ways of docs/operating.md
. tests/cli/lib.sh
start_server
export CAIRN_TOKEN=$token
dir=$(model tiny-llama)
"$cairn" models add "$dir" --name tiny >/dev/null
"$cairn" load tiny >/dev/null
attach
for step in 1 2 3; do
    expect_exit 0 "$cairn" save my-run $step --continue
done
expect_exit 0 "$cairn" detach
copy() { mkdir -p "$2" && tar -C "$1" --exclude='.tmp-*' --exclude=.lock -cf - . | tar -C "$2" -xf -; }
again() { # STATE CHECKPOINTS: the server once more, with these
    kill "$server"
    wait "$server" || die "the server ended with exit status $?"
    server=""
    unset CAIRN_ATTACHMENT
    start_server STATE_DIR="$1" WEIGHTS_CHECKPOINT_DIR="$2"
}

# A backup while the server runs; a restored one knows everything.
copy "$scratch/checkpoints" "$scratch/backup/checkpoints"
mkdir -p "$scratch/backup/state"
python3 -c 'import sqlite3, sys; sqlite3.connect(sys.argv[1]).backup(sqlite3.connect(sys.argv[2]))' "$scratch/state/cairn.db" "$scratch/backup/state/cairn.db"
again "$scratch/backup/state" "$scratch/backup/checkpoints"
expect_exit 0 "$cairn" verify tiny:my-run:step-2 --root "$scratch/backup/checkpoints"
expect_exit 0 "$cairn" lineage tiny:my-run:step-3 --root "$scratch/backup/checkpoints"
[ "$(grep -c my-run:step "$scratch/out")" = 3 ] || die "the lineage is not whole"
expect_exit 0 "$cairn" models
out_has "tiny"
expect_exit 0 "$cairn" load tiny
expect_exit 0 "$cairn" load --path my-run/latest
out_has "tiny:my-run:step-3"

# Without its catalogue: checkpoints come back by themselves and by reindex, models by their directories.
kill "$server"
wait "$server"
server=""
expect_exit 0 env STATE_DIR="$scratch/fresh" WEIGHTS_CHECKPOINT_DIR="$scratch/backup/checkpoints" "$cairn" reindex --verify
out_has "3 added"
start_server STATE_DIR="$scratch/fresh" WEIGHTS_CHECKPOINT_DIR="$scratch/backup/checkpoints"
expect_exit 0 "$cairn" models add "$dir" --name tiny
expect_exit 0 "$cairn" models
out_has "tiny:my-run:step-1 .*  -$" # nobody has measured it yet
expect_exit 0 "$cairn" load tiny:my-run:step-1

# Another machine: the run is copied below the root of a server that runs and knows neither it nor its base.
again "$scratch/other" "$scratch/other-checkpoints"
copy "$scratch/backup/checkpoints/my-run" "$scratch/other-checkpoints/my-run"
expect_exit 0 "$cairn" load tiny:my-run:step-2
out_has full_reload
expect_exit 0 "$cairn" complete hello --max-tokens 4
expect_exit 0 "$cairn" lineage
[ "$(grep -c my-run:step "$scratch/out")" = 2 ] || die "the lineage did not come along"

# A step that is removed breaks the lineage of its children and nothing else; its row goes by hand.
rm -r "$scratch/other-checkpoints/my-run/step-000001"
expect_exit 0 "$cairn" lineage
out_has "breaks at tiny:my-run:step-1"
expect_exit 0 "$cairn" load --path my-run/latest
expect_exit 0 "$cairn" unload tiny:my-run:step-2
expect_exit 0 "$cairn" models rm tiny:my-run:step-2
