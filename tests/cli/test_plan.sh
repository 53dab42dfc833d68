#!/bin/sh
# load --plan and save --plan say what would happen and change nothing
. tests/cli/lib.sh
start_server
export CAIRN_TOKEN=$token
"$cairn" models add "$(model tiny-llama)" --name tiny >/dev/null
expect_exit 0 "$cairn" load tiny --plan
out_has "would load tiny"
out_has "nobody waits"
expect_exit 0 "$cairn" models --json
[ "$(jq -r '.[0].status' "$scratch/out")" = ready ] || die "the plan loaded the model"
"$cairn" load tiny >/dev/null
expect_exit 1 "$cairn" save demo 1 --plan
err_has NOT_ATTACHED
attach
expect_exit 0 "$cairn" save demo 1 --plan
out_has "would save tiny:demo:step-1"
out_has "demo/step-000001"
[ ! -e "$scratch/checkpoints/demo" ] || die "the plan wrote"
"$cairn" save demo 1 >/dev/null
expect_exit 1 "$cairn" save demo 1 --plan
err_has CHECKPOINT_EXISTS
expect_exit 0 "$cairn" load tiny:demo:step-1 --plan
out_has "after running requests have ended"
expect_exit 0 "$cairn" load --path demo/latest --plan --json
out_is_json
[ "$(jq -r .way "$scratch/out")" = copy ] || die "attached, a load copies"
file=$scratch/checkpoints/demo/step-000001/model.safetensors
chmod u+w "$file"
printf x | dd of="$file" bs=1 seek=9000 conv=notrunc 2>/dev/null
expect_exit 1 "$cairn" load tiny:demo:step-1 --plan
err_has CHECKPOINT_HASH_MISMATCH
for step in "" 1x -1 99999999999999999999; do
    expect_exit 2 "$cairn" save demo "$step"
    err_has "STEP must be a whole number"
    expect_exit 2 "$cairn" promote checkpoint demo "$step"
done
echo '{}' >"$scratch/manifest.json"
expect_exit 2 "$cairn" save demo --manifest "$scratch/manifest.json"
expect_exit 2 "$cairn" promote
expect_exit 2 "$cairn" save --manifest "$scratch/manifest.json" --domain sailing
err_has "no other option may give one"
expect_exit 2 "$cairn" save demo 2 --parent tiny:demo:step-1 --continue
err_has "in one way"
