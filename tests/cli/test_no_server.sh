#!/bin/sh
# a client command without a server says so and what to do
. tests/cli/lib.sh
expect_exit 1 "$cairn" status --url http://127.0.0.1:9
err_has "cairn serve"
expect_exit 1 "$cairn" status --url http://127.0.0.1:9 --json
out_is_json

# What is no address of a server is told so, and nothing else is read in its place.
printf '{"data": {}}' >"$scratch/status"
for url in "" http:// ftp://127.0.0.1:9 "file://$scratch/status" http://127.0.0.1:99999; do
    expect_exit 1 "$cairn" status --url "$url"
    err_has "is no URL of a server"
done
CAIRN_URL=localhost:9 expect_exit 1 "$cairn" status
err_has "no server answers at localhost:9"
