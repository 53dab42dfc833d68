#!/bin/sh
# a client command without a server says so and what to do
. tests/cli/lib.sh
expect_exit 1 "$cairn" status --url http://127.0.0.1:9
err_has "cairn serve"
expect_exit 1 "$cairn" status --url http://127.0.0.1:9 --json
out_is_json
