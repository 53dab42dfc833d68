#!/bin/sh
# tests/clients/run.sh: the real client packages against build/cairn, in environments outside the tree.
# The last line is "N passed, N failed" over both.
set -u
cd "$(dirname "$0")/../.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/cairn-tests

# environment NAME PIP-ARGUMENTS...: made once.
environment() {
    venv=$cache/$1
    shift
    [ -x "$venv/bin/pytest" ] && return 0
    /usr/bin/python3 -m venv "$venv" && "$venv/bin/pip" install -q --disable-pip-version-check "$@"
}

passed=0
failed=0
# count NAME PYTEST-ARGUMENTS...
count() {
    venv=$cache/$1
    shift
    out=$("$venv/bin/pytest" -q -p no:cacheprovider "$@" 2>&1)
    rc=$?
    echo "$out" | tail -60
    sum=$(echo "$out" | grep -E '^[0-9]+ (passed|failed|error|skipped).* in [0-9]' | tail -1) # clients may write behind it
    p=$(echo "$sum" | grep -oE '[0-9]+ passed' | grep -oE '[0-9]+')
    f=$(echo "$sum" | grep -oE '[0-9]+ (failed|error)' | grep -oE '[0-9]+' | awk '{s+=$1} END {print s+0}')
    [ "$rc" -ne 0 ] && [ "${f:-0}" -eq 0 ] && f=1
    passed=$((passed + ${p:-0}))
    failed=$((failed + ${f:-0}))
}

environment clients 'openai>=1.50,<3' 'pytest>=7,<9' 'safetensors>=0.4' numpy || failed=1
count clients tests/clients/*.py

# The training SDK without its gigabytes of torch: tests/clients/weaver/standin has the few calls that it makes.
environment weaver --no-deps -r tests/clients/weaver/requirements.txt || failed=$((failed + 1))
count weaver tests/clients/weaver

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
