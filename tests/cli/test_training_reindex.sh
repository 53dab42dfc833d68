#!/bin/sh
# the database is deleted, and reindex makes the rows of the training API's checkpoints again
. tests/cli/lib.sh
export STATE_DIR="$scratch/state" WEIGHTS_CHECKPOINT_DIR="$scratch/checkpoints" WEAVER_API_KEYS="me:sk-cli-key" WEAVER_API_KEY=sk-cli-key
dir=$(model tiny-llama)
start_server
export CAIRN_TOKEN=$token
expect_exit 0 "$cairn" models add "$dir" --name one
api() { # METHOD PATH BODY
    curl -sf -X "$1" "$CAIRN_URL/api/v1$2" -H "X-WEAVER-API-KEY: $WEAVER_API_KEY" -H "Content-Type: application/json" -d "$3"
}
new_run() { # MODE SEED: a session and a run in it
    session=$(api POST /sessions '{}' | jq -r .id)
    api POST "/sessions/$session/models" "{\"model_seq_id\":1,\"base_model\":\"one\",\"training_mode\":\"$1\",\"lora_config\":{\"rank\":4,\"seed\":$2}}" | jq -r .id
}
datum='{"model_input":{"chunks":[{"type":"encoded_text","tokens":[1,2,3]}]},"loss_fn_inputs":{"target_tokens":[2,3,4]}}'
scores() { # RUN SEQ
    api POST "/models/$1/forward-passes" "{\"payload\":{\"seq_id\":$2,\"forward_input\":{\"loss_fn\":\"forward_logprob\",\"data\":[$datum]}}}" |
        jq -c .response.result.loss_fn_outputs[0].logprobs.data
}
for mode in lora full_ft; do
    run=$(new_run $mode 1)
    api POST "/models/$run/forward-backward-passes" "{\"payload\":{\"seq_id\":1,\"forward_backward_input\":{\"loss_fn\":\"cross_entropy\",\"data\":[$datum]}}}" >/dev/null
    api POST "/models/$run/optimizer-steps" '{"payload":{"seq_id":2,"adam_params":{"learning_rate":0.01}}}' >/dev/null
    scores "$run" 3 >"$scratch/scores-$mode"
    api POST "/models/$run/checkpoints" '{"type":"weight_and_optimizer","name":"keep","ttl_seconds":86400}' >/dev/null
    echo "$run" >"$scratch/run-$mode"
done
for _ in $(seq 50); do
    [ "$("$cairn" checkpoints --json | jq '[.items[] | select(.status == "completed")] | length')" = 2 ] && break
    sleep 0.1
done
listed() { "$cairn" checkpoints --json | jq -cS '.items | sort_by(.id)'; }
before=$(listed)
expect_exit 1 "$cairn" reindex
err_has "in use by another server"
kill "$server" && wait "$server" || true
rm -f "$scratch"/state/cairn.db*
mkdir -p "$scratch/state/weaver/$(cat "$scratch/run-lora")/00000000-0000-4000-8000-000000000000"

expect_exit 1 "$cairn" reindex --json
[ "$(jq -c '[.added, .kept, .refused]' "$scratch/out")" = "[2,0,1]" ] || die "$(cat "$scratch/out")"
rmdir "$scratch/state/weaver/$(cat "$scratch/run-lora")/00000000-0000-4000-8000-000000000000"
expect_exit 0 "$cairn" reindex --verify
out_has "0 added, 2 kept"
start_server
[ "$(listed)" = "$before" ] || die "the checkpoints are $(listed), not $before"
expect_exit 0 "$cairn" models add "$dir" --name one
for mode in lora full_ft; do
    run=$(new_run $mode 2)
    api POST "/models/$run/load" "{\"path\":\"weaver://$(cat "$scratch/run-$mode")/checkpoints/keep\",\"include_optimizer\":true}" >/dev/null
    [ "$(scores "$run" 1)" = "$(cat "$scratch/scores-$mode")" ] || die "$mode: other scores after reindex and load"
done
kill "$server" && wait "$server" || true
server=""
for f in "$scratch"/state/weaver/*/*/adapter_model.safetensors; do printf x | dd of="$f" bs=1 seek=5000 conv=notrunc 2>/dev/null; done
expect_exit 0 "$cairn" reindex
expect_exit 1 "$cairn" reindex --verify
out_has refused
