#!/bin/sh
# run_unit.sh SECONDS PROGRAM...: runs each unit test program with a time limit and counts its tests.
# Prints one line a program, the whole output of a program that failed, and "unit: N passed, M failed".
set -u
limit=$1
shift
passed=0
failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for program in "$@"; do
    timeout "$limit" "$program" >"$log" 2>&1
    rc=$?
    p=$(grep -c '^\[       OK \]' "$log")
    f=$(grep -c '^\[  FAILED  \] [A-Za-z_0-9]*$' "$log")
    [ $rc -ne 0 ] && [ "$f" -eq 0 ] && f=1
    [ $rc -eq 0 ] && f=0
    [ $rc -eq 0 ] && [ "$p" -eq 0 ] && { f=1; echo "no test ran" >>"$log"; }
    if [ $rc -eq 0 ] && [ "$f" -eq 0 ]; then
        echo "ok    ${program##*/} ($p)"
    else
        echo "FAIL  $program (exit $rc)"
        cat "$log"
    fi
    passed=$((passed + p))
    failed=$((failed + f))
done
echo "unit: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
