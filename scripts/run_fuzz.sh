#!/bin/sh
# run_fuzz.sh DIR SECONDS: runs every fuzz target in DIR from its kept corpus, JOBS at a time (default: one a CPU); new
# inputs go to a scratch folder.
set -u

# one SECONDS TARGET
if [ "$1" = --one ]; then
    name=${3##*/}
    work=$(mktemp -d)
    corpus=tests/fuzz/corpus/${name#fuzz_}
    [ -d "$corpus" ] || corpus=tests/fuzz/corpus/$name
    # shellcheck disable=SC3045
    ulimit -s 4096 # what a handler has under sanitizers (src/http/workers.c)
    if "$3" -max_total_time="$2" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=0 \
        -artifact_prefix="$work/" "$work" $([ -d "$corpus" ] && echo "$corpus") >"$work.log" 2>&1; then
        echo "ok    $name ($(grep -c . "$work.log") lines, $(grep -o 'DONE.*' "$work.log" | head -1))"
    else
        printf 'FAIL  %s\n%s\n' "$name" "$(tail -40 "$work.log")"
    fi
    rm -rf "$work" "$work.log"
    exit 0
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
targets=$(find "$1" -maxdepth 1 -name 'fuzz_*' -type f -perm -u+x | sort)
printf '%s\n' "$targets" | xargs -r -P "${JOBS:-$(nproc)}" -n 1 sh "$0" --one "$2" | tee "$log"
passed=$(grep -c '^ok    fuzz_' "$log")
failed=$(($(printf '%s\n' "$targets" | grep -c .) - passed)) # also one that ended without a word
echo "fuzz: $passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
