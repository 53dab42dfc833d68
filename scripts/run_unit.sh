#!/bin/sh
# run_unit.sh SECONDS PROGRAM...: runs each unit test program with a time limit, JOBS at a time (default: one a CPU), and
# counts its tests. Prints one line a program, the whole output of a program that failed, and "unit: N passed, M failed".
set -u

# --one SECONDS DIR PROGRAM: leaves "passed failed" in DIR; says it in one piece.
if [ "$1" = --one ]; then
    log=$3/${4##*/}.$$
    timeout "$2" "$4" >"$log" 2>&1
    rc=$?
    p=$(grep -c '^\[       OK \]' "$log")
    f=$(grep '^\[  FAILED  \] [A-Za-z_0-9]*$' "$log" | sort -u | wc -l) # each is named twice
    [ $rc -ne 0 ] && [ "$f" -eq 0 ] && f=1
    [ $rc -eq 0 ] && f=0
    began=$(grep -c '^\[ RUN      \]' "$log") # and did not pass: skipped, for this machine lacks something
    [ $rc -eq 0 ] && [ "$began" -eq 0 ] && { f=1; echo "no test ran" >>"$log"; }
    if [ "$f" -eq 0 ]; then
        echo "ok    ${4##*/} ($p$([ "$p" -eq "$began" ] || echo ", $((began - p)) skipped"))" >"$log"
    else
        sed -i "1i FAIL  $4 (exit $rc)" "$log"
    fi
    echo "$p $f" >"$log.sum"
    flock "$3" cat "$log"
    exit 0
fi

limit=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
printf '%s\n' "$@" | xargs -P "${JOBS:-$(nproc)}" -n 1 sh "$0" --one "$limit" "$dir"
cat "$dir"/*.sum | awk -v programs=$# '
    { passed += $1; failed += $2 }
    END { failed += programs - NR; printf "unit: %d passed, %d failed\n", passed, failed; exit failed > 0 || NR == 0 }'
