#!/bin/sh
# cov.sh BUILD: lines and branches that the unit tests reached, a line a source file (gcov).
set -eu
cd "$(dirname "$0")/.."
find "$1/obj" -name '*.gcda' | while read -r data; do
    gcov -b -n "$data" 2>/dev/null | awk '
        /^File .src/ { file = $2; gsub(/\x27/, "", file) }
        /^Lines executed/ && file { split($0, a, ":"); lines = a[2] }
        /^Branches executed/ && file { split($0, a, ":"); print file "\t" lines "\t" a[2]; file = "" }'
done | sort -u
