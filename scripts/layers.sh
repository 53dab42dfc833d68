#!/bin/sh
# layers.sh ROOM...: prints every include that does not point to a lower room; exit 1 when there is one.
# The rooms come lowest first. Rooms of one level (tensor db http text) may not include each other either.
set -u
level() {
    case $1 in
    base) echo 0 ;; kernels) echo 1 ;; tensor | db) echo 2 ;; http | text) echo 3 ;; model) echo 4 ;;
    store | generate | train) echo 5 ;; engine) echo 6 ;; service) echo 7 ;; api) echo 8 ;; cli) echo 9 ;; daemon) echo 10 ;;
    *) echo 99 ;;
    esac
}
bad=0
for room in "$@"; do
    mine=$(level "$room")
    for file in $(find "src/$room" -name '*.[ch]'); do
        for target in $(sed -n 's/^#include "\([a-z]*\)\/.*/\1/p' "$file" | sort -u); do
            [ "$target" = "$room" ] && continue
            if [ "$(level "$target")" -ge "$mine" ]; then
                echo "$file includes $target/ (level $(level "$target") from level $mine)"
                bad=1
            fi
        done
    done
done
grep -l '^#include "[a-z]*/' src/kernels/* 2>/dev/null | while read -r f; do
    grep -n '^#include "\(base\|tensor\|model\)/' "$f" | sed "s|^|$f: kernels include nothing of ours: |"
done
exit $bad
