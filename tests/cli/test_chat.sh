#!/bin/sh
# chat answers one message, and a conversation from standard input, the same greedy text both ways
. tests/cli/lib.sh
start_server AUTO_LOAD_MODEL=
dir=$(model tiny-qwen3)
expect_exit 0 "$cairn" models add "$dir" --name tiny
expect_exit 0 "$cairn" load tiny
expect_exit 0 "$cairn" chat --message "Hi there" --temperature 0 --max-tokens 6 --json
one=$(jq -r .text "$scratch/out")
printf 'Hi there\n' | "$cairn" chat --temperature 0 --max-tokens 6 >"$scratch/two"
[ "$(cat "$scratch/two")" = "$one" ] || die "the conversation said $(cat "$scratch/two"), one turn said $one"
