# tests/cli/lib.sh - what every script here uses: a scratch folder, a server, and words for expectations.
set -eu
cairn=${CAIRN:-build/cairn}
scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/cairn-cli.XXXXXX")
server=""
token=cli-test-token-0123456789

finish() {
    [ -n "$server" ] && kill "$server" 2>/dev/null && wait "$server" 2>/dev/null
    rm -rf "$scratch"
}
trap finish EXIT

die() {
    echo "$*" >&2
    exit 1
}

# start_server [VAR=VALUE ...]: sets url and exports CAIRN_URL.
start_server() {
    : >"$scratch/log" # here, not in the process that is started: what a server of before said is not read again
    env STATE_DIR="$scratch/state" WEIGHTS_CHECKPOINT_DIR="$scratch/checkpoints" WEIGHTS_TOKENS="trainer:cli:$token" "$@" \
        "$cairn" serve --port 0 >"$scratch/log" 2>&1 &
    server=$!
    for _ in $(seq 500); do
        CAIRN_URL=$(sed -n 's/^listening on //p' "$scratch/log" | head -1)
        [ -n "$CAIRN_URL" ] && break
        kill -0 "$server" 2>/dev/null || { cat "$scratch/log" >&2; die "the server did not start"; }
        sleep 0.05
    done
    [ -n "$CAIRN_URL" ] || die "the server does not answer"
    export CAIRN_URL
}

# A copy of a tiny model under its own name, so that a test may change it.
model() {
    cp -r "tests/vectors/models/$1" "$scratch/$1"
    chmod -R u+w "$scratch/$1"
    echo "$scratch/$1"
}

# expect_exit N COMMAND...: output in $scratch/out and $scratch/err.
expect_exit() {
    want=$1
    shift
    got=0
    "$@" >"$scratch/out" 2>"$scratch/err" || got=$?
    if [ "$got" != "$want" ]; then
        cat "$scratch/out" "$scratch/err" >&2
        die "$*: exit status $got, expected $want"
    fi
}

out_has() { grep -qe "$1" "$scratch/out" || { cat "$scratch/out" >&2; die "the output does not have: $1"; }; }
err_has() { grep -qe "$1" "$scratch/err" || { cat "$scratch/err" >&2; die "the error does not have: $1"; }; }
out_is_json() { jq -e . "$scratch/out" >/dev/null || { cat "$scratch/out" >&2; die "the output is not JSON"; }; }

# A trainer that maps nothing: its attachment id, exported as CAIRN_ATTACHMENT.
attach() {
    CAIRN_ATTACHMENT=$(curl -s "$CAIRN_URL/api/weights/attach" -H "Authorization: Bearer $token" -H 'Content-Type: application/json' \
        -d '{"client": "tests"}' | jq -r .data.attachment_id)
    [ "$CAIRN_ATTACHMENT" != null ] || die "nothing could attach"
    export CAIRN_ATTACHMENT
}
