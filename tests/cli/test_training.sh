#!/bin/sh
# runs, checkpoints and operations of the training API are listed, shown, kept, removed and exported
. tests/cli/lib.sh
dir=$(model tiny-llama)
start_server WEAVER_API_KEYS="me:sk-cli-key"
export CAIRN_TOKEN=$token
expect_exit 0 "$cairn" models add "$dir" --name one
expect_exit 1 "$cairn" runs
err_has unauthorized
export WEAVER_API_KEY=sk-cli-key
expect_exit 0 "$cairn" runs
api() { # METHOD PATH BODY: the answer on stdout
    curl -sf -X "$1" "$CAIRN_URL/api/v1$2" -H "X-WEAVER-API-KEY: $WEAVER_API_KEY" -H "Content-Type: application/json" -d "$3"
}
session=$(api POST /sessions '{}' | jq -r .id)
run=$(api POST "/sessions/$session/models" '{"model_seq_id":1,"base_model":"one","lora_config":{"rank":4,"seed":1}}' | jq -r .id)
datum='{"model_input":{"chunks":[{"type":"encoded_text","tokens":[1,2,3]}]},"loss_fn_inputs":{"target_tokens":[2,3,4]}}'
for seq in 1 3 5; do
    api POST "/models/$run/forward-backward-passes" \
        "{\"payload\":{\"seq_id\":$seq,\"forward_backward_input\":{\"loss_fn\":\"cross_entropy\",\"data\":[$datum]}}}" >/dev/null
    api POST "/models/$run/optimizer-steps" "{\"payload\":{\"seq_id\":$((seq + 1)),\"adam_params\":{\"learning_rate\":0.01}}}" >/dev/null
done
api POST "/models/$run/checkpoints" '{"type":"weight","name":"first"}' >/dev/null
sleep 0.5
path="weaver://$run/checkpoints/first"

expect_exit 0 "$cairn" runs ls
out_has "$run"
expect_exit 0 "$cairn" runs show "$run"
out_has "3 passes"
expect_exit 0 "$cairn" runs show "$run" --json
jq -e '(.losses | length) == 3 and .losses[2] < .losses[0] and (.checkpoints | length) == 1' "$scratch/out" >/dev/null || die "losses in --json"
expect_exit 1 "$cairn" runs show none
err_has model_not_found
expect_exit 0 "$cairn" checkpoints
out_has "$path"
id=$("$cairn" checkpoints show "$path" --json | jq -r .id)
expect_exit 0 "$cairn" checkpoints show "$id"
out_has "$path"
expect_exit 0 "$cairn" checkpoints ttl "$path" 3600
out_has 3600
expect_exit 0 "$cairn" checkpoints ttl "$id" none
expect_exit 2 "$cairn" checkpoints ttl "$id" soon
expect_exit 0 "$cairn" ops
out_has save_checkpoint
expect_exit 0 "$cairn" ops show "$("$cairn" ops --json | jq -r '.items[0].id')"
out_has done

expect_exit 0 "$cairn" export "$path" "$scratch/adapter"
out_has adapter_model.safetensors
jq -e '.r == 4' "$scratch/adapter/adapter_config.json" >/dev/null || die "adapter_config.json"
expect_exit 0 "$cairn" export "$id" "$scratch/merged" --merge
expect_exit 0 "$cairn" inspect "$scratch/merged/model.safetensors"
expect_exit 1 "$cairn" export "$path" "$scratch/adapter"
err_has "is already there: say another DIR"
err_has adapter_
expect_exit 0 "$cairn" checkpoints rm "$path"
expect_exit 1 "$cairn" checkpoints show "$id"
err_has checkpoint_expired
expect_exit 2 "$cairn" checkpoints rm
api POST "/models/$run/checkpoints" '{"type":"weight","name":"best"}' >/dev/null
for _ in $(seq 50); do "$cairn" checkpoints show "weaver://$run/checkpoints/best" 2>/dev/null | grep -q completed && break; sleep 0.1; done
expect_exit 0 "$cairn" promote "weaver://$run/checkpoints/best" demo 7
out_has "one:demo:step-7"
expect_exit 0 "$cairn" verify "$scratch/checkpoints/demo/step-000007"
expect_exit 1 "$cairn" promote "weaver://$run/checkpoints/best" demo 7
err_has CHECKPOINT_EXISTS
expect_exit 2 "$cairn" promote "weaver://$run/checkpoints/best"

# more than one page of them: all are listed
/usr/bin/python3 - "$scratch/state/cairn.db" <<'EOF'
import sqlite3
import sys

db = sqlite3.connect(sys.argv[1], timeout=60)
row = dict(zip([c[1] for c in db.execute("PRAGMA table_info(weaver_checkpoints)")],
               db.execute("SELECT * FROM weaver_checkpoints WHERE slug = 'best'").fetchone()))
for i in range(230):
    new = {**row, "id": f"00000000-0000-4000-8000-{i:012}", "slug": f"copy-{i}"}
    db.execute(f"INSERT INTO weaver_checkpoints ({', '.join(new)}) VALUES ({', '.join('?' * len(new))})", list(new.values()))
db.commit()
EOF
expect_exit 0 "$cairn" checkpoints
[ "$(grep -c /copy- "$scratch/out")" -eq 230 ] || die "checkpoints lists $(grep -c /copy- "$scratch/out") of 230"
expect_exit 0 "$cairn" checkpoints --json
jq -e '(.items | length) == 231 and (.items | map(.id) | unique | length) == 231' "$scratch/out" >/dev/null || die "checkpoints --json"
