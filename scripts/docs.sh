#!/bin/sh
# docs.sh: prints what the code has and the documents do not: variables of the environment, commands, codes of errors, metrics,
# folders of src/, and links between documents that lead nowhere; exit 1 when there is one, or when nothing was found to look for.
set -u
variables() { # that the program reads
    {
        grep -hoE '(_VAR\(|config_env\(|name\[\] = |^    \{)"[A-Z][A-Z0-9_]+"' src/daemon/config.c src/daemon/config_vars.c
        grep -rhoE '(getenv\(|env_ms\(|or_env\([^,]*, )"[A-Z][A-Z0-9_]+"' src --include='*.c'
    } | grep -oE '[A-Z][A-Z0-9_]+"$' | tr -d '"' | sort -u | grep -vx 'TZ\|HOME'
}
commands() { sed -n '/^static const struct cli_cmd/,/^};/s/^    {"\([a-z-]*\)".*/\1/p' src/main.c; }
codes() { sed -n 's/^MANAGEMENT(\([A-Z_]*\),.*/\1/p; s/^[A-Z]*([A-Z0-9_]*, "\([a-z_]*\)".*/\1/p' src/service/refusals.tbl | sort -u; }
metrics() { grep -hoE '"(cairn_|vllm:|process_)[a-z_]+"' src/service/metrics_text.c | tr -d '"' | sort -u; }
links() { # FILE<tab>TARGET
    git ls-files '*.md' | while read -r f; do
        grep -oE '\]\([^)# ]+' "$f" | sed 's/^](//' | grep -v '^[a-z]*:' | sed "s|^|$f	|"
    done
}

missing=$(
    for list in variables commands codes metrics links; do
        [ -n "$($list)" ] || echo "docs.sh found no $list: its patterns are not those of the code any more"
    done
    for v in $(variables); do
        grep -qwr "$v" docs/api/configuration.md man || echo "$v is read, but neither docs/api/configuration.md nor man/ has it"
    done
    for c in $(commands); do
        grep -q "^\.It Cm $c\b" man/cairn.1 || echo "the command $c is not in man/cairn.1"
    done
    for c in $(codes); do
        grep -qw -- "$c" docs/api/errors.md || echo "the code $c is not in docs/api/errors.md"
    done
    for m in $(metrics); do
        grep -qw -- "$m" docs/api/metrics.md || echo "the metric $m is not in docs/api/metrics.md"
    done
    for d in src/*/; do
        grep -q "^| .${d%/}. |" ARCHITECTURE.md || echo "$d is not in the map of ARCHITECTURE.md"
    done
    links | while IFS='	' read -r f target; do
        [ -e "$(dirname "$f")/$target" ] || echo "$f: $target does not exist"
    done
)
[ -z "$missing" ] && exit 0
echo "$missing"
exit 1
