#!/bin/sh
# cairn alone explains itself, every command has --help, an unknown one is refused
. tests/cli/lib.sh
expect_exit 0 "$cairn"
for c in serve import inspect tokenize models load unload chat complete save lineage adapters lease runs checkpoints ops export promote status attach-status quiesce resume detach verify reindex; do
    expect_exit 0 "$cairn"
    out_has "$c"
    expect_exit 0 "$cairn" "$c" --help
    out_has "cairn $c"
done
expect_exit 2 "$cairn" frobnicate
err_has frobnicate
expect_exit 2 "$cairn" load --no-such-option
err_has no-such-option
expect_exit 0 "$cairn" --version
