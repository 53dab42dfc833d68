#!/bin/sh
# lint.sh [FILE...]: cppcheck over src/, then clang-tidy over FILE... (default: every source in src/), one file a run and
# JOBS at a time (default: one a CPU). Prints findings; exit 1 when there is one. LINT_FAST=1: cppcheck alone.
set -u
jobs=${JOBS:-$(nproc)}

# --one FILE: the findings of clang-tidy, in one piece.
if [ "${1:-}" = --one ]; then
    case $2 in
    *_avx2.c) extra="-mavx2 -mfma -mf16c" ;;
    *_avx512.c) extra="-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c" ;;
    *_bf16.c) extra="-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mfma" ;;
    *) extra="" ;;
    esac
    # shellcheck disable=SC2086
    out=$(clang-tidy --quiet "$2" -- -std=gnu11 -D_GNU_SOURCE -Isrc -Ibuild/gen $LINT_CFLAGS $extra 2>/dev/null |
        grep -E '(warning|error):') || exit 0
    echo "$out"
    exit 1
fi

rc=0
make -s build/gen/manifest_schema.inc build/gen/openapi_parts.inc build/gen/chat_worker.inc
cppcheck --quiet -j "$jobs" --std=c11 --language=c --enable=warning,portability --inline-suppr --error-exitcode=1 \
    --suppressions-list=scripts/cppcheck.txt -D_GNU_SOURCE -Isrc -Ibuild/gen src || rc=1
[ "${LINT_FAST:-0}" = 1 ] && exit $rc
[ $# -gt 0 ] || set -- $(git ls-files 'src/*.c')
LINT_CFLAGS=$(pkg-config --cflags libmicrohttpd jansson sqlite3 libcrypto libpcre2-8 libutf8proc libseccomp libcurl libzstd)
export LINT_CFLAGS
printf '%s\n' "$@" | xargs -P "$jobs" -n 1 sh "$0" --one || rc=1
exit $rc
