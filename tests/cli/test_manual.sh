#!/bin/sh
# the manual pages have the options that --help has, and no others
. tests/cli/lib.sh
shared='help\|json' # of every command

options_of() { "$cairn" "$1" --help | sed -n 's/^  --\([a-z-]*\).*/\1/p' | grep -vx "$shared" | sort -u || true; }
options_in() { grep -oE '(Fl|,) -[a-z-]+' "$1" | sed 's/.* -//' | grep -vx "$shared" | sort -u || true; }
agree() { # PAGE: with the options in $scratch/options
    options_in "$1" >"$scratch/page"
    diff "$scratch/options" "$scratch/page" || die "$1 does not have the options of --help (<), or has others (>)"
}

"$cairn" | sed -n 's/^  \([a-z-]*\) .*/\1/p' | grep -v '^cairn$' >"$scratch/commands"
[ "$(wc -l <"$scratch/commands")" -gt 20 ] || die "cairn does not list its commands"
: >"$scratch/others"
while read -r c; do
    page=$(ls "man/cairn-$c".[18] 2>/dev/null || true)
    options_of "$c" >"$scratch/options"
    if [ -n "$page" ]; then agree "$page"; else cat "$scratch/options" >>"$scratch/others"; fi
    grep -q "^\.It Cm $c\b" man/cairn.1 || die "man/cairn.1 does not name $c"
done <"$scratch/commands"
sort -u "$scratch/others" >"$scratch/options"
agree man/cairn.1
