#!/bin/sh
# bytes that no request can hold are refused at once, a proxy is not asked for this machine, and a full disk is no success
. tests/cli/lib.sh
start_server
export CAIRN_TOKEN=$token
odd=$(printf 'x\377')
for words in "load $odd:r:step-1" "load --path $odd/latest" "save run 1 --domain $odd" "lease m take --reason $odd" "complete $odd"; do
    expect_exit 2 "$cairn" $words
    err_has UTF-8
done
printf 'x\377\n' >"$scratch/lines"
expect_exit 1 "$cairn" chat <"$scratch/lines"
err_has UTF-8

dir=$(model tiny-llama)
mv "$dir" "$scratch/$odd"
expect_exit 0 "$cairn" verify "$scratch/$odd" --json
out_is_json
expect_exit 0 "$cairn" inspect "$scratch/$odd/model.safetensors" --json
out_is_json

for name in http_proxy HTTP_PROXY all_proxy; do expect_exit 0 env $name=http://127.0.0.1:9 "$cairn" status; done

[ -c /dev/full ] || exit 0
for words in status "status --json" help "models ls"; do
    code=0
    "$cairn" $words >/dev/full 2>"$scratch/err" || code=$?
    [ "$code" = 1 ] || die "$words on a full disk: exit status $code"
done
err_has "could not be written"
