#!/bin/sh
# verify and lineage find a checkpoint by its name below the roots, without a server
. tests/cli/lib.sh
start_server
export CAIRN_TOKEN=$token
"$cairn" models add "$(model tiny-llama)" --name tiny >/dev/null
"$cairn" load tiny >/dev/null
attach
"$cairn" save demo 1 >/dev/null
"$cairn" save demo 2 --continue >/dev/null
"$cairn" save other 1 --parent tiny:gone:step-7 >/dev/null
kill "$server"
wait "$server" 2>/dev/null || true
server=""
unset CAIRN_URL CAIRN_ATTACHMENT CAIRN_TOKEN
root=$scratch/checkpoints
for what in tiny:demo:step-2 demo/step-000002 demo/latest; do
    expect_exit 0 "$cairn" verify "$what" --root "$root"
    out_has "tiny:demo:step-2, step 2, parent tiny:demo:step-1"
    expect_exit 0 env WEIGHTS_CHECKPOINT_DIR="$root" "$cairn" verify "$what"
done
expect_exit 1 "$cairn" verify tiny:demo:step-2
err_has "Say --root"
expect_exit 1 "$cairn" verify tiny:demo:step-9 --root "$root"
err_has "no root has demo/step-000009"
expect_exit 1 "$cairn" verify demo --root "$root"
err_has "neither a directory nor the name"
expect_exit 1 "$cairn" verify tiny:demo:step-2 --root "$scratch/none"
err_has "No such file"
mkdir -p "$scratch/second"
cp -r "$root/demo" "$scratch/second/"
expect_exit 1 "$cairn" verify tiny:demo:step-2 --root "$root" --read-roots "$scratch/second"
err_has "under two roots"
expect_exit 1 "$cairn" verify elsewhere:demo:step-2 --root "$root"
err_has "not that of the name asked for"
cp -r "$root/demo/step-000002" "$root/demo/step-000003"
expect_exit 1 "$cairn" verify demo/step-000003 --root "$root"
err_has "belongs to demo/step-000002"
expect_exit 0 "$cairn" verify "$root/demo/step-000003"
rm -r "$root/demo/step-000003"
expect_exit 0 "$cairn" lineage tiny:demo:step-2 --root "$root"
out_has "^tiny$"
out_has "   └─ tiny:demo:step-2 "
expect_exit 0 "$cairn" lineage tiny:other:step-1 --root "$root"
out_has "the chain breaks at tiny:gone:step-7: no root has this checkpoint (manifest_missing)"
expect_exit 0 "$cairn" lineage tiny:demo:step-2 --root "$root" --json
[ "$(jq -r '.chain | length' "$scratch/out")" = 2 ] || die "the chain is not whole"
expect_exit 1 "$cairn" lineage tiny:none:step-1 --root "$root"
err_has "no root has this checkpoint"
