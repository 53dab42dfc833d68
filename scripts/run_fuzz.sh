#!/bin/sh
# run_fuzz.sh DIR SECONDS: runs every fuzz target in DIR from its kept corpus; new inputs go to a scratch folder.
set -u
dir=$1
seconds=$2
passed=0
failed=0
for f in "$dir"/fuzz_*; do
    [ -x "$f" ] && case $f in *.d) continue ;; esac
    [ -x "$f" ] || continue
    name=${f##*/}
    work=$(mktemp -d)
    corpus=tests/fuzz/corpus/${name#fuzz_}
    [ -d "$corpus" ] || corpus=tests/fuzz/corpus/$name
    if "$f" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=0 \
        -artifact_prefix="$work/" "$work" $([ -d "$corpus" ] && echo "$corpus") >"$work.log" 2>&1; then
        echo "ok    $name ($(grep -c . "$work.log") lines, $(grep -o 'DONE.*' "$work.log" | head -1))"
        passed=$((passed + 1))
    else
        echo "FAIL  $name"
        tail -40 "$work.log"
        failed=$((failed + 1))
    fi
    rm -rf "$work" "$work.log"
done
echo "fuzz: $passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
