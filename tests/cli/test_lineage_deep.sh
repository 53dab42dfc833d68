#!/bin/sh
# a long chain is drawn in order, and beyond twelve levels without further indentation
. tests/cli/lib.sh
start_server
export CAIRN_TOKEN=$token
"$cairn" models add "$(model tiny-llama)" --name tiny >/dev/null
"$cairn" load tiny >/dev/null
attach
for step in $(seq 15); do
    "$cairn" save deep "$step" --continue >/dev/null
done
expect_exit 0 "$cairn" lineage
[ "$(wc -l <"$scratch/out")" = 16 ] || die "not one line a checkpoint"
sed -n 's/.*tiny:deep:step-\([0-9]*\) .*/\1/p' "$scratch/out" >"$scratch/steps"
seq 15 | cmp -s - "$scratch/steps" || die "the order is wrong"
out_has "^└─ tiny:deep:step-1 "
out_has "^ \{33\}└─ tiny:deep:step-12 "
out_has "^ \{33\}└─ tiny:deep:step-15 .*<- resident"
