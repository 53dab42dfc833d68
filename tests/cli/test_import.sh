#!/bin/sh
# a GGUF file becomes a directory that verifies; twice the same bytes; what is refused leaves nothing behind
. tests/cli/lib.sh
expect_exit 0 "$cairn" import tests/vectors/gguf/tiny-qwen3.gguf "$scratch/a" --json
out_is_json
sum=$(jq -r .sha256 "$scratch/out")
[ "$(sha256sum <"$scratch/a/model.safetensors" | cut -c1-64)" = "$sum" ] || die "sha256sum disagrees"
expect_exit 0 "$cairn" verify "$scratch/a"
expect_exit 0 "$cairn" import tests/vectors/gguf/tiny-qwen3.gguf "$scratch/b"
out_has "$sum"
cmp "$scratch/a/tokenizer.json" "$scratch/b/tokenizer.json" || die "two imports differ"
expect_exit 1 "$cairn" import tests/vectors/gguf/tiny-qwen3.gguf "$scratch/a"
err_has "already there"
head -c 100000 tests/vectors/gguf/tiny-qwen3.gguf >"$scratch/cut.gguf"
expect_exit 1 "$cairn" import "$scratch/cut.gguf" "$scratch/c"
err_has "cut.gguf"
[ ! -e "$scratch/c" ] || die "a failed import left its directory"
expect_exit 1 "$cairn" import "$scratch/absent.gguf" "$scratch/c"

# What leads to the directory is made, too, and removed where nothing came of it.
mkdir "$scratch/there"
for dir in "$scratch/there/d/e" there/d/e/ ./there//d/e; do
    expect_exit 1 env -C "$scratch" "$(realpath "$cairn")" import cut.gguf "$dir"
    [ -z "$(ls -A "$scratch/there")" ] || die "a failed import left what leads to $dir"
    [ -d "$scratch/there" ] || die "a failed import removed what was there before"
done
expect_exit 0 "$cairn" import tests/vectors/gguf/tiny-qwen3.gguf "$scratch/there/d/e"
expect_exit 0 "$cairn" verify "$scratch/there/d/e"
expect_exit 1 "$cairn" import "$scratch/cut.gguf" "$scratch/cut.gguf/d"
err_has "make the directory"
expect_exit 2 "$cairn" import "$scratch/cut.gguf"
