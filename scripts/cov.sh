#!/bin/sh
# cov.sh BUILD: what the tests reach of a COV=1 build, a line a folder (scripts/coverage.py tells what nothing reached).
#   COV_PARTS="api crash cli unit"   which tests run, JOBS programs or files at a time (default: one a CPU)
# The counts of earlier runs are dropped first. Tests that fail are told, and the report is printed all the same; exit 1 then.
set -u

# --one FILE: the tests of one file, silent unless they fail.
if [ "$1" = --one ]; then
    log=$(mktemp)
    start=$(date +%s)
    if /usr/bin/python3 -m pytest -q -p no:cacheprovider "$2" >"$log" 2>&1; then
        echo "ok    $2 ($(($(date +%s) - start)) s)"
        rm -f "$log"
        exit 0
    fi
    echo "FAIL  $2"
    tail -60 "$log"
    rm -f "$log"
    exit 1
fi

cd "$(dirname "$0")/.." || exit 1
build=$1
rc=0
export CAIRN="$PWD/$build/cairn" CAIRN_FAULTS="$PWD/$build/cairn-faults" JOBS="${JOBS:-$(nproc)}"

part() { # part NAME COMMAND...
    name=$1
    shift
    case " ${COV_PARTS:-api crash cli unit} " in *" $name "*) ;; *) return ;; esac
    printf '== %s\n' "$name"
    "$@" || rc=1
}
files() { printf '%s\n' "$@" | xargs -P "$JOBS" -n 1 sh scripts/cov.sh --one; }
programs() { sh scripts/run_unit.sh "${TEST_SECONDS:-600}" "$@"; }

find "$build" -name '*.gcda' -delete
part api files tests/api/test_*.py
part crash files tests/crash/test_*.py
part cli sh tests/cli/run.sh
# shellcheck disable=SC2046
part unit programs $(find "$build"/tests/*/ -name 'test_*' -type f -perm -u+x | sort)
/usr/bin/python3 scripts/coverage.py "$build" || rc=1
exit $rc
