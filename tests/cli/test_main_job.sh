#!/bin/sh
# register, load, complete, save, trace, verify and unload with the command line alone
. tests/cli/lib.sh
start_server
export CAIRN_TOKEN=$token
dir=$(model tiny-llama)
expect_exit 0 "$cairn" models add "$dir" --name tiny
expect_exit 1 "$cairn" models add "$dir" --name tiny
err_has MODEL_ALREADY_EXISTS
[ ! -s "$scratch/out" ] || die "a refused registration prints a row"
mkdir "$scratch/empty"
expect_exit 0 "$cairn" models add "$scratch/empty" # its files may come later
err_has "cannot be loaded as it is: the directory has neither model.safetensors"
expect_exit 1 "$cairn" models add tests/vectors/gguf/tiny-qwen3.gguf
err_has "cairn import FILE.gguf DIR"
expect_exit 0 "$cairn" load tiny
expect_exit 0 "$cairn" models
out_has tiny
expect_exit 0 "$cairn" complete "hello" --temperature 0 --max-tokens 8 --json
out_is_json
first=$(jq -r .text "$scratch/out")
[ -n "$first" ] || die "no text came"
expect_exit 1 "$cairn" save demo 1
err_has NOT_ATTACHED
CAIRN_ATTACHMENT=$(curl -s "$CAIRN_URL/api/weights/attach" -H "Authorization: Bearer $token" -H 'Content-Type: application/json' -d '{}' | jq -r .data.attachment_id)
export CAIRN_ATTACHMENT
expect_exit 0 "$cairn" save demo 1 --domain test --json
out_is_json
name=$(jq -r .name "$scratch/out")
[ "$name" = "tiny:demo:step-1" ] || die "the name is $name"
path=$(jq -r .path "$scratch/out")
[ "$(sha256sum <"$scratch/checkpoints/$path/model.safetensors" | cut -c1-64)" = "$(jq -r .weights_sha256 "$scratch/out")" ] || die "sha256sum disagrees"
expect_exit 0 "$cairn" verify "$scratch/checkpoints/$path"
expect_exit 0 "$cairn" save demo 2 --continue
expect_exit 0 "$cairn" lineage
out_has "demo:step-1"
out_has "demo:step-2.*resident"
expect_exit 0 "$cairn" load tiny:demo:step-1 --json
[ "$(jq -r .mode "$scratch/out")" = in_place ] || die "not in place"
expect_exit 0 "$cairn" status
out_has "tiny:demo:step-1"
curl -s "$CAIRN_URL/api/weights/detach" -H "Authorization: Bearer $token" -H "X-miLLM-Attachment: $CAIRN_ATTACHMENT" -H 'Content-Type: application/json' -d '{}' >/dev/null
expect_exit 0 "$cairn" complete "hello" --temperature 0 --max-tokens 8 --json
[ "$(jq -r .text "$scratch/out")" = "$first" ] || die "the answer changed"
expect_exit 0 "$cairn" unload tiny
expect_exit 1 "$cairn" chat --message hi
err_has "cairn load"
expect_exit 0 "$cairn" models rm tiny
