#!/bin/sh
# attach-status, quiesce, resume and detach act for the trainer whose id is given
. tests/cli/lib.sh
start_server WEIGHTS_QUIESCE_MAX_HOLD_S=60
export CAIRN_TOKEN=$token
"$cairn" models add "$(model tiny-llama)" --name tiny >/dev/null
"$cairn" load tiny >/dev/null
expect_exit 0 "$cairn" attach-status
out_has "nothing is attached"
expect_exit 0 "$cairn" attach-status --json
[ "$(jq -r .attachment "$scratch/out")" = null ] || die "nothing is attached, the JSON says otherwise"
expect_exit 1 "$cairn" quiesce
err_has NOT_ATTACHED
attach
expect_exit 0 "$cairn" attach-status
out_has 'attached .*cli (trainer, client "tests"), live'
expect_exit 0 "$cairn" quiesce
out_has "quiesced *true"
expect_exit 1 "$cairn" quiesce
err_has ALREADY_QUIESCED
expect_exit 0 "$cairn" attach-status
out_has "serving *quiesced"
out_has "hold *by cli since .*, ends by itself at "
expect_exit 0 "$cairn" attach-status --json
[ "$(jq -r .serving "$scratch/out")" = quiesced ] || die "the JSON does not say quiesced"
expect_exit 1 "$cairn" resume --attachment att_wrong
err_has NOT_ATTACHMENT_HOLDER
expect_exit 0 "$cairn" resume --json
[ "$(jq -r .resumed "$scratch/out")" = true ] || die "not resumed"
expect_exit 1 "$cairn" detach --force
err_has FORBIDDEN
expect_exit 0 "$cairn" detach
out_has "detached *true"
expect_exit 0 "$cairn" attach-status
out_has "nothing is attached"
