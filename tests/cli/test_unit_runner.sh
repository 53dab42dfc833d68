#!/bin/sh
# the unit runner counts what passed, lets be what this machine has to skip, and fails where no test ran
. tests/cli/lib.sh
program() { # NAME RESULT...: what a program of the test library prints, one line of results a test
    name=$1
    shift
    { echo '#!/bin/sh'; for r in "$@"; do printf "echo '[ RUN      ] a_test'\necho '[%s] a_test'\n" "$r"; done; } >"$scratch/$name"
    chmod +x "$scratch/$name"
}
ok='       OK ' skipped='  SKIPPED ' failed='  FAILED  '
program passes "$ok" "$ok"
program skips "$skipped" "$skipped"
program both "$ok" "$skipped"
program nothing
program fails "$failed"
printf "echo '[  FAILED  ] a_test'\nexit 1\n" >>"$scratch/fails" # in the list at the end once more

expect_exit 0 sh scripts/run_unit.sh 9 "$scratch/passes" "$scratch/skips" "$scratch/both"
out_has 'passes (2)$'
out_has 'skips (0, 2 skipped)$'
out_has 'both (1, 1 skipped)$'
out_has 'unit: 3 passed, 0 failed'
expect_exit 1 sh scripts/run_unit.sh 9 "$scratch/passes" "$scratch/nothing"
out_has 'no test ran'
out_has 'unit: 2 passed, 1 failed'
expect_exit 1 sh scripts/run_unit.sh 9 "$scratch/fails" "$scratch/passes"
out_has 'unit: 2 passed, 1 failed'
