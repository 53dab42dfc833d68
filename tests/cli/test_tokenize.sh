#!/bin/sh
# tokenize turns text into ids and ids into the same text
. tests/cli/lib.sh
dir=tests/vectors/models/tiny-llama-untied-rope3
printf 'It'"'"'s 1234 caf\303\251s\n\n  x' >"$scratch/text"
expect_exit 0 "$cairn" tokenize "$dir" <"$scratch/text"
out_is_json
jq -e 'length > 5 and all(type == "number")' "$scratch/out" >/dev/null || die "not a list of ids"
cp "$scratch/out" "$scratch/ids"
expect_exit 0 "$cairn" tokenize --decode "$dir" <"$scratch/ids"
cmp "$scratch/out" "$scratch/text" || die "the ids do not give the text back"
expect_exit 0 "$cairn" tokenize --decode --json "$dir" <"$scratch/ids"
out_is_json
expect_exit 0 "$cairn" tokenize --add-special "$dir" <"$scratch/text"
jq -e --slurpfile plain "$scratch/ids" '.[0] == 535 and .[1:] == $plain[0]' "$scratch/out" >/dev/null || die "no BOS in front"
printf '<|eot_id|>' >"$scratch/text"
expect_exit 0 "$cairn" tokenize "$dir" <"$scratch/text"
jq -e 'length == 1' "$scratch/out" >/dev/null || die "a special token is one id"
expect_exit 0 "$cairn" tokenize --special-as-text "$dir" <"$scratch/text"
jq -e 'length > 1' "$scratch/out" >/dev/null || die "a special token read as text is plain text"
printf 'a\377' >"$scratch/text"
expect_exit 1 "$cairn" tokenize "$dir" <"$scratch/text"
err_has "not UTF-8 at byte 1"
echo '[1, 99999]' >"$scratch/text"
expect_exit 1 "$cairn" tokenize --decode "$dir" <"$scratch/text"
err_has "element 1"
expect_exit 1 "$cairn" tokenize "$scratch" </dev/null
err_has tokenizer.json
expect_exit 2 "$cairn" tokenize
