#!/bin/sh
# the steps of a run are done again from its log with the same bits; a log that says other numbers, or holds no data, does not pass
. tests/cli/lib.sh
dir=$(model tiny-llama)
export WEAVER_API_KEY=sk-cli-key CAIRN_TOKEN=$token
start_server WEAVER_API_KEYS="me:$WEAVER_API_KEY" CAIRN_STEP_LOG=1
expect_exit 0 "$cairn" models add "$dir" --name one
api() { # METHOD PATH BODY: the answer on stdout
    curl -sf -X "$1" "$CAIRN_URL/api/v1$2" -H "X-WEAVER-API-KEY: $WEAVER_API_KEY" -H "Content-Type: application/json" -d "$3"
}
ended() { # waits for the operation whose envelope comes on stdin
    op=$(jq -r .id)
    while :; do
        envelope=$(api GET "/operations/$op" '')
        case $(printf %s "$envelope" | jq -r .status) in
        done) return ;;
        pending | running) sleep 0.05 ;;
        *) die "the operation did not end well: $envelope" ;;
        esac
    done
}
# pass MODEL SEQ, step MODEL SEQ
pass() {
    api POST "/models/$1/forward-backward-passes" "{\"payload\":{\"seq_id\":$2,\"forward_backward_input\":{\"loss_fn\":\"ppo_clip\",
        \"loss_fn_config\":{\"clip_ratio\":0.1,\"temperature\":1.5},\"data\":[{\"model_input\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[1,2,$2]}]},
        \"loss_fn_inputs\":{\"target_tokens\":[2,$2,-100],\"logprobs\":[-6.1,-5.9,0],\"advantages\":0.7,\"weights\":[1,0.3,1]}}]}}}" | ended
}
step() { api POST "/models/$1/optimizer-steps" "{\"payload\":{\"seq_id\":$2,\"adam_params\":{\"learning_rate\":0.01}}}" | ended; }

session=$(api POST /sessions '{}' | jq -r .id)
for mode in lora full_ft; do
    run=$(api POST "/sessions/$session/models" "{\"model_seq_id\":1,\"base_model\":\"one\",\"training_mode\":\"$mode\",\"lora_config\":{\"rank\":4}}" | jq -r .id)
    for seq in 1 4; do
        pass "$run" "$seq"
        pass "$run" "$((seq + 1))"
        step "$run" "$((seq + 2))"
    done
    api POST "/models/$run/checkpoints" '{"type":"weight_and_optimizer","name":"half"}' | ended
    step "$run" 7 # without a gradient
    pass "$run" 8
    step "$run" 9
    api POST "/models/$run/load" "{\"path\":\"weaver://$run/checkpoints/half\",\"include_optimizer\":true}" | ended
    pass "$run" 10
    step "$run" 11
    log="$scratch/state/steps/$run.jsonl"
    [ "$(stat -c %a "$log")" = 600 ] || die "the mode of the log"
    expect_exit 0 "$cairn" runs redo "$log"
    out_has '^12 operations done again'
    expect_exit 0 "$cairn" runs redo --keep --json "$log"
    jq -e '.operations == 12 and .same_bits' "$scratch/out" >/dev/null || die "redo --json"
    again=$(jq -r .run "$scratch/out")
    cmp "$log" "$scratch/state/steps/$again.jsonl" >/dev/null 2>&1 && die "two runs have one log"
    jq -r 'select(.status) | .result_sha256 // .grad_norm' "$log" >"$scratch/was"
    jq -r 'select(.status) | .result_sha256 // .grad_norm' "$scratch/state/steps/$again.jsonl" >"$scratch/is"
    cmp "$scratch/was" "$scratch/is"
    expect_exit 0 "$cairn" runs show "$again"
    out_has active
done

# a number that is not the recorded one
sed 's/"seq_id":10,\(.*\)"weights":{"data":\[1,/"seq_id":10,\1"weights":{"data":[0.9,/' "$log" >"$scratch/other.jsonl"
cmp -s "$log" "$scratch/other.jsonl" && die "nothing was changed"
expect_exit 1 "$cairn" runs redo "$scratch/other.jsonl"
err_has 'log-probabilities differ'
sed 's/"learning_rate":0.01/"learning_rate":0.011/' "$log" >"$scratch/other.jsonl"
expect_exit 1 "$cairn" runs redo "$scratch/other.jsonl"
err_has differ
# files that are no log
head -c -20 "$log" >"$scratch/cut.jsonl"
expect_exit 1 "$cairn" runs redo "$scratch/cut.jsonl"
err_has 'line 25 is damaged'
expect_exit 1 "$cairn" runs redo "$dir/config.json"
expect_exit 1 "$cairn" runs redo "$scratch/none.jsonl"
expect_exit 2 "$cairn" runs redo
kill "$server" && wait "$server"

# without the variable the log holds digests
start_server WEAVER_API_KEYS="me:$WEAVER_API_KEY"
session=$(api POST /sessions '{}' | jq -r .id)
run=$(api POST "/sessions/$session/models" '{"model_seq_id":1,"base_model":"one","lora_config":{"rank":4}}' | jq -r .id)
pass "$run" 1
jq -es '(.[1].data_sha256 | length) == 64 and (.[1] | has("data") | not) and .[2].status == "done"' "$scratch/state/steps/$run.jsonl" >/dev/null ||
    die "the line of a pass"
expect_exit 1 "$cairn" runs redo "$scratch/state/steps/$run.jsonl"
err_has CAIRN_STEP_LOG
