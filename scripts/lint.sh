#!/bin/sh
# lint.sh: cppcheck over the tree, then clang-tidy one file a run. Prints findings; exit 1 when there is one.
set -u
rc=0
flags="-std=gnu11 -D_GNU_SOURCE -Isrc -Ibuild/gen $(pkg-config --cflags libmicrohttpd jansson sqlite3 libcrypto)"
make -s build/gen/manifest_schema.inc build/gen/chat_worker.inc
cppcheck --quiet --std=c11 --language=c --enable=warning,portability --inline-suppr --error-exitcode=1 \
    --suppressions-list=scripts/cppcheck.txt -D_GNU_SOURCE -Isrc -Ibuild/gen src || rc=1
if [ "${LINT_FAST:-0}" != 1 ]; then
    for f in $(git ls-files 'src/*.c'); do
        case $f in
        *_avx2.c) extra="-mavx2 -mfma -mf16c" ;;
        *_avx512.c) extra="-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c" ;;
        *_bf16.c) extra="-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mfma" ;;
        *) extra="" ;;
        esac
        out=$(clang-tidy --quiet "$f" -- $flags $extra 2>/dev/null | grep -E '(warning|error):')
        if [ -n "$out" ]; then
            echo "$out"
            rc=1
        fi
    done
fi
exit $rc
