#!/bin/sh
# adapters are listed, applied and taken off; a lease keeps the model, and its id lets a load through
. tests/cli/lib.sh
dir=$(model tiny-llama)
other=$(model tiny-qwen2)
mkdir "$scratch/adapters"
cp -r tests/vectors/golden/tiny-llama/lora "$scratch/adapters/lora"
start_server ADAPTER_DIR="$scratch/adapters"
export CAIRN_TOKEN=$token
expect_exit 0 "$cairn" models add "$dir" --name one
expect_exit 0 "$cairn" models add "$other" --name two
expect_exit 0 "$cairn" load one
expect_exit 0 "$cairn" adapters
out_has lora
expect_exit 0 "$cairn" adapters apply lora --scale 0.5
out_has "scale 0.5"
expect_exit 0 "$cairn" adapters ls
out_has yes
for bad in nan inf 1e999 half; do expect_exit 2 "$cairn" adapters apply lora --scale $bad; done
err_has scale
expect_exit 1 "$cairn" adapters apply none
err_has ADAPTER_NOT_FOUND
expect_exit 0 "$cairn" adapters rm
out_has lora
expect_exit 2 "$cairn" adapters apply

expect_exit 0 "$cairn" lease one
out_has "no lease"
expect_exit 1 "$cairn" lease one take --ttl 0
err_has "INVALID_LEASE_REQUEST: .*[^)]$"
expect_exit 0 "$cairn" lease one take --holder tests --ttl 60
id=$(head -1 "$scratch/out")
expect_exit 0 "$cairn" lease one
out_has tests
expect_exit 1 "$cairn" load two
err_has MODEL_LEASED
expect_exit 0 "$cairn" lease one renew --lease "$id" --ttl 120
expect_exit 1 "$cairn" lease one end
err_has "INVALID_LEASE_REQUEST: .*(--lease, or CAIRN_LEASE)$"
expect_exit 0 "$cairn" load two --lease "$id"
expect_exit 1 "$cairn" lease one end --lease "$id"
err_has LEASE_EXPIRED
