#!/bin/sh
# the catalogue is deleted and reindex makes the rows of the checkpoints again
. tests/cli/lib.sh
export STATE_DIR="$scratch/state" WEIGHTS_CHECKPOINT_DIR="$scratch/checkpoints"
start_server
export CAIRN_TOKEN=$token
expect_exit 0 "$cairn" models add "$(model tiny-llama)" --name tiny
expect_exit 0 "$cairn" models add "$(model tiny-qwen3)" --name other
expect_exit 0 "$cairn" load tiny
CAIRN_ATTACHMENT=$(curl -s "$CAIRN_URL/api/weights/attach" -H "Authorization: Bearer $token" -H 'Content-Type: application/json' -d '{}' | jq -r .data.attachment_id)
export CAIRN_ATTACHMENT
for step in 1000 900 1000000; do expect_exit 0 "$cairn" save demo $step; done
curl -s "$CAIRN_URL/api/weights/detach" -H "Authorization: Bearer $token" -H "X-miLLM-Attachment: $CAIRN_ATTACHMENT" -H 'Content-Type: application/json' -d '{}' >/dev/null
unset CAIRN_ATTACHMENT

# the server makes the row of a checkpoint at a full reload; that is what reindex has to make again
expect_exit 0 "$cairn" load other
for step in 1000 900 1000000; do
    expect_exit 0 "$cairn" load tiny:demo:step-$step
    expect_exit 0 "$cairn" load --model-id "$(curl -s "$CAIRN_URL/api/models" | jq '.data[] | select(.name == "other").id')"
done
rows() { curl -s "$CAIRN_URL/api/models" | jq -c '[.data[] | select(.checkpoint) | {name, source, local_path, status, checkpoint}] | sort'; }
before=$(rows)
[ "$(echo "$before" | jq length)" = 3 ] || die "three rows of checkpoints are expected: $before"
expect_exit 1 "$cairn" reindex
err_has "in use by another server"
kill "$server" && wait "$server" || true
rm -f "$scratch"/state/cairn.db*
mkdir "$scratch/checkpoints/demo/step-000007" "$scratch/checkpoints/demo/.tmp-step-000008-00000000-00000000"
touch "$scratch/checkpoints/file"

expect_exit 1 "$cairn" reindex --json
out_is_json
[ "$(jq -c '[.added, .kept, .renamed, .refused]' "$scratch/out")" = "[3,0,0,1]" ] || die "$(cat "$scratch/out")"
[ "$(jq -r '[.checkpoints[].path] | join(" ")' "$scratch/out")" = "demo/step-000007 demo/step-000900 demo/step-001000 demo/step-1000000" ] || die "$(cat "$scratch/out")"
rmdir "$scratch/checkpoints/demo/step-000007"
expect_exit 0 "$cairn" reindex --verify
out_has "0 added, 3 kept, 0 renamed, 0 refused"
start_server
[ "$(rows)" = "$before" ] || die "the rows are $(rows), not $before"
expect_exit 0 "$cairn" load tiny:demo:step-900

# a damaged file is found with --verify, and only then
kill "$server" && wait "$server" || true
printf x | dd of="$scratch/checkpoints/demo/step-001000/model.safetensors" bs=1 seek=200000 conv=notrunc 2>/dev/null
expect_exit 0 "$cairn" reindex
expect_exit 1 "$cairn" reindex --verify
out_has "refused .*step-001000"
server=""
