#!/bin/sh
# races.sh PROGRAM TEST...: API tests against PROGRAM, a server built with SAN=thread. Prints what ThreadSanitizer reports; exit 1
# when there is a report, or a test fails.
set -u
program=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
CAIRN=$program TSAN_OPTIONS="log_path=$dir/race halt_on_error=0 history_size=4 suppressions=scripts/tsan.txt second_deadlock_stack=1" \
    /usr/bin/python3 -m pytest -q -p no:cacheprovider "$@"
rc=$?
for report in "$dir"/race.*; do
    [ -f "$report" ] || continue
    cat "$report"
    rc=1
done
exit $rc
