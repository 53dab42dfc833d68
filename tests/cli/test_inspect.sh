#!/bin/sh
# inspect lists what may be read and says why the rest is refused, for every file of the case table
. tests/cli/lib.sh
tail -n +2 tests/vectors/cases/cases.tsv | cut -f1,2 | while read -r file verdict; do
    want=1
    [ "$verdict" = accept ] && want=0
    expect_exit $want "$cairn" inspect "tests/vectors/cases/$file" --json
    out_is_json
    [ $want = 0 ] || [ "$(wc -l <"$scratch/err")" = 1 ] || die "$file: not one line of error"
done
expect_exit 0 "$cairn" inspect tests/vectors/gguf/tiny-lfm2.gguf
out_has "shortconv.conv.weight.*BF16"
expect_exit 0 "$cairn" inspect tests/vectors/cases/st/ok_minimal.safetensors
out_has "ec72c19dc774503d5a6114a0606a97ad4b2a06dc8f283ea23fb8285dd759248f"
