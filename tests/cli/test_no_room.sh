#!/bin/sh
# files that may not grow (a limit, a full disk) end a command with the reason, and leave nothing half-made
. tests/cli/lib.sh
limited() { (ulimit -f "$1" && shift && exec "$@"); } # in blocks of 512 bytes
gguf=tests/vectors/gguf/tiny-qwen3.gguf

expect_exit 1 limited 100 "$cairn" import $gguf "$scratch/a"
err_has "write model.safetensors"
err_has "File too large"
[ ! -e "$scratch/a" ] || die "a failed import left its directory"

export STATE_DIR="$scratch/state" WEIGHTS_CHECKPOINT_DIR="$scratch/checkpoints"
expect_exit 1 limited 8 "$cairn" serve --port 0
err_has "cairn.db"
err_has "File too large"
expect_exit 0 "$cairn" reindex
expect_exit 1 limited 8 "$cairn" reindex
err_has "File too large"
expect_exit 0 "$cairn" reindex
