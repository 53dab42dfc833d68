#!/usr/bin/env bash
# check.sh: installs what the tests need, builds with warnings as errors, runs every test.
# The last line is "N passed, N failed"; exit 0 only when nothing failed.
#   CHECK_ONLY="unit api"  runs only those parts (unit sanitize api cli clients crash fuzz lint man)
set -u
cd "$(dirname "$0")"
export LC_ALL=C.UTF-8
only=${CHECK_ONLY:-"lint unit sanitize api cli clients crash fuzz man"}
passed=0
failed=0
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT
PY=/usr/bin/python3

say() { printf '\n== %s\n' "$*"; }
want() { case " $only " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

# one NAME COMMAND...: a step that counts as one test.
one() {
    local name=$1
    shift
    if "$@" >"$log/one" 2>&1; then
        echo "ok    $name"
        passed=$((passed + 1))
    else
        echo "FAIL  $name"
        tail -60 "$log/one"
        failed=$((failed + 1))
    fi
}

# counted NAME COMMAND...: a runner that prints "N passed" and "N failed" itself.
counted() {
    local name=$1 p f rc
    shift
    "$@" 2>&1 | tee "$log/counted"
    rc=${PIPESTATUS[0]}
    p=$(grep -oE '[0-9]+ passed' "$log/counted" | tail -1 | grep -oE '[0-9]+')
    f=$(grep -oE '[0-9]+ (failed|error)' "$log/counted" | grep -oE '[0-9]+' | awk '{s+=$1} END {print s+0}')
    p=${p:-0}
    if [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then
        echo "FAIL  $name ended with exit status $rc"
        f=1
    fi
    passed=$((passed + p))
    failed=$((failed + f))
}

finish() {
    printf '\n%d passed, %d failed\n' "$passed" "$failed"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
    exit
}

say "packages"
sh scripts/packages.sh install test || { failed=1; finish; }

jobs=$(nproc)
say "build (warnings are errors)"
if ! make -s -j"$jobs" WERROR=1 all >"$log/build" 2>&1; then
    cat "$log/build"
    failed=1
    finish
fi
one "build" true
one "build with fault points" make -s -j"$jobs" WERROR=1 faults

if want lint; then
    say "layers and lint"
    one "layers" make -s layers
    one "lint" env LINT_FAST="${LINT_FAST:-1}" make -s lint
fi

if want unit; then
    say "unit tests"
    make -s -j"$jobs" WERROR=1 tests >"$log/build" 2>&1 || cat "$log/build"
    counted "unit" make -s WERROR=1 check
fi

if want sanitize; then
    say "unit tests under ASan and UBSan"
    make -s -j"$jobs" WERROR=1 SAN=address,undefined tests all >"$log/build" 2>&1 || cat "$log/build"
    counted "unit (sanitized)" make -s WERROR=1 SAN=address,undefined check
fi

if want api; then
    say "API over HTTP"
    make -s -j"$jobs" WERROR=1 faults >"$log/build" 2>&1 || cat "$log/build" # test_weights_faults.py
    counted "api" "$PY" -m pytest -q -p no:cacheprovider tests/api
    if want sanitize; then
        say "API over HTTP, the server under ASan and UBSan"
        CAIRN=$PWD/build/variant-address-undefined/cairn \
            counted "api (sanitized)" "$PY" -m pytest -q -p no:cacheprovider tests/api
    fi
fi

if want cli; then
    say "command line"
    counted "cli" sh tests/cli/run.sh
fi

if want clients; then
    say "real clients"
    counted "clients" sh tests/clients/run.sh
fi

if want crash; then
    say "kill -9 and full disks"
    counted "crash" "$PY" -m pytest -q -p no:cacheprovider tests/crash
fi

if want fuzz; then
    say "fuzz targets, ${FUZZ_SECONDS:-10} s each"
    counted "fuzz" make -s -j"$jobs" FUZZ_SECONDS="${FUZZ_SECONDS:-10}" fuzz
fi

if want man; then
    say "manual pages"
    one "man" make -s man
fi
finish
