#!/bin/sh
# tests/cli/run.sh [NAME]: every script here is one behaviour, its second line says which. Ends "N passed, N failed".
set -u
cd "$(dirname "$0")/../.."
passed=0
failed=0
for t in tests/cli/test_*.sh; do
    case $t in *"${1:-}"*) ;; *) continue ;; esac
    what=$(sed -n '2s/^# //p' "$t")
    if log=$(timeout 120 sh "$t" 2>&1); then
        echo "ok    $what"
        passed=$((passed + 1))
    else
        echo "FAIL  $t: $what"
        echo "$log" | tail -30
        failed=$((failed + 1))
    fi
done
echo "cli: $passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
