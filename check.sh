#!/usr/bin/env bash
# check.sh: installs what the tests need, builds with warnings as errors, runs every test.
# The last line is "N passed, N failed"; exit 0 only when nothing failed.
#   CHECK_ONLY="unit api"  runs only those parts (lint unit sanitize api cli clients crash fuzz man;
#                          man: `make man` and `make docs`)
#   CHECK_SLOTS=4          how many parts run beside each other (default: one a CPU)
#   FUZZ_SECONDS=10        how long each fuzz target runs
#   LINT_FAST=0            lint with clang-tidy too, which takes minutes
# Everything is built first, on all CPUs. Then the parts run beside each other, the long ones first; what a part
# says comes in one piece when it has ended.
set -u
cd "$(dirname "$0")"
export LC_ALL=C.UTF-8
only=${CHECK_ONLY:-"lint unit sanitize api cli clients crash fuzz man"}
cpus=$(nproc)
slots=${CHECK_SLOTS:-$cpus}
passed=0
failed=0
log=$(mktemp -d)
PY=/usr/bin/python3

want() { # want NAME...: all of them are asked for
    local name
    for name in "$@"; do
        case " $only " in *" $name "*) ;; *) return 1 ;; esac
    done
}

# one NAME COMMAND...: a step that counts as one test.
one() {
    local name=$1 to
    shift
    to=$(mktemp -p "$log")
    if "$@" >"$to" 2>&1; then
        echo "ok    $name"
        passed=$((passed + 1))
    else
        echo "FAIL  $name"
        tail -60 "$to"
        failed=$((failed + 1))
    fi
}

# counted NAME COMMAND...: a runner that prints "N passed" and "N failed" itself.
counted() {
    local name=$1 to rc sum p f
    shift
    to=$(mktemp -p "$log")
    "$@" 2>&1 | tee "$to"
    rc=${PIPESTATUS[0]}
    sum=$(grep -E '[0-9]+ (passed|failed|error)' "$to" | tail -1)
    p=$(grep -oE '[0-9]+ passed' <<<"$sum" | grep -oE '[0-9]+')
    f=$(grep -oE '[0-9]+ (failed|error)' <<<"$sum" | grep -oE '[0-9]+' | awk '{s+=$1} END {print s+0}')
    if [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then
        echo "FAIL  $name ended with exit status $rc"
        f=1
    fi
    passed=$((passed + ${p:-0}))
    failed=$((failed + f))
}

finish() {
    printf '\n%d passed, %d failed\n' "$passed" "$failed"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
    exit
}

# ---- parts beside each other: each is a process group of its own, which an interrupt reaches as a whole ----
declare -A running=() began=()

# shellcheck disable=SC2317
end_all() {
    trap - EXIT INT TERM
    local pid
    for pid in "${!running[@]}"; do kill -INT -- "-$pid" 2>/dev/null; done
    wait
    rm -rf "$log"
}
trap end_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# reap: waits until one part has ended, prints what it said and adds its counts.
reap() {
    local pid name p f
    wait -n -p pid "${!running[@]}"
    name=${running[$pid]}
    unset "running[$pid]"
    printf '\n== %s (%d s)\n' "$name" $((SECONDS - began[$pid]))
    cat "$log/$name.out"
    read -r p f 2>/dev/null <"$log/$name.sum" || { p=0 f=1; echo "FAIL  $name ended before its time"; }
    passed=$((passed + p))
    failed=$((failed + f))
}

# beside NAME COMMAND...: runs COMMAND (which calls one or counted) in the next free slot.
beside() {
    local name=$1
    shift
    while [ "${#running[@]}" -ge "$slots" ]; do reap; done
    set -m
    (
        trap - EXIT INT TERM
        passed=0 failed=0
        "$@"
        echo "$passed $failed" >"$log/$name.sum"
    ) >"$log/$name.out" 2>&1 </dev/null &
    set +m
    running[$!]=$name
    began[$!]=$SECONDS
}

# ---- build ----
# build NAME MAKE-ARGUMENTS...: on all CPUs; nothing runs that was not built.
build() {
    local name=$1 start=$SECONDS
    shift
    if ! make -s -j"$cpus" "$@" >"$log/build" 2>&1; then
        cat "$log/build"
        echo "FAIL  build: $name"
        failed=$((failed + 1))
        finish
    fi
    echo "ok    build: $name ($((SECONDS - start)) s)"
    passed=$((passed + 1))
}

printf '== packages\n'
sh scripts/packages.sh install test || { failed=1; finish; }

printf '\n== build (warnings are errors)\n'
build "the program" WERROR=1 all
build "with fault points" WERROR=1 faults # test_weights_faults.py
want unit && build "unit tests" WERROR=1 tests
want unit && build "benches" WERROR=1 benches
want sanitize && build "everything under ASan and UBSan" WERROR=1 SAN=address,undefined tests all
want fuzz && build "fuzz targets" FUZZ=1 CC=clang fuzzers

# ---- run: the long parts first ----
pytest() { "$PY" -m pytest -q -p no:cacheprovider "$@"; }
sanitized_api() {
    export CAIRN=$PWD/build/variant-address-undefined/cairn
    counted "api (sanitized)" pytest tests/api
}
lint() {
    one "layers" make -s layers
    one "lint" env LINT_FAST="${LINT_FAST:-1}" make -s lint
}
documents() {
    one "man" make -s man
    one "docs" make -s docs
}
export JOBS=1 # a part that could run several things at a time runs one

want sanitize && beside "unit tests under ASan and UBSan" \
    counted "unit (sanitized)" make -s WERROR=1 SAN=address,undefined check
want sanitize api && beside "API over HTTP, the server under ASan and UBSan" sanitized_api
want api && beside "API over HTTP" counted "api" pytest tests/api
want fuzz && beside "fuzz targets" \
    counted "fuzz" sh scripts/run_fuzz.sh build/variant-fuzz/fuzz "${FUZZ_SECONDS:-10}"
want unit && beside "unit tests" counted "unit" make -s WERROR=1 check
want crash && beside "kill -9 and full disks" counted "crash" pytest tests/crash
want clients && beside "real clients" counted "clients" sh tests/clients/run.sh
want lint && beside "layers and lint" lint
want cli && beside "command line" counted "cli" sh tests/cli/run.sh
want man && beside "documents" documents
while [ "${#running[@]}" -gt 0 ]; do reap; done
finish
