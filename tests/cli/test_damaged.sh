#!/bin/sh
# verify and inspect name what is wrong with a damaged file
. tests/cli/lib.sh
dir=$(model tiny-llama)
expect_exit 0 "$cairn" verify "$dir"
expect_exit 0 "$cairn" inspect "$dir/model.safetensors" --json
out_is_json
truncate -s -1 "$dir/model.safetensors"
expect_exit 1 "$cairn" verify "$dir"
expect_exit 1 "$cairn" inspect "$dir/model.safetensors"
err_has model.safetensors
