"""The training peer: SmolLM2 in PyTorch (transformers, peft), one step a line of standard input.

usage: torch_train.py MODEL_DIR full|lora f32|bf16 BATCH LENGTH
Answers each line with the seconds of one step (forward, backward, clip, AdamW), and the loss."""
import os
import sys
import time
import warnings

warnings.filterwarnings("ignore")
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

RANK = 32
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def main():
    path, kind, numerics, batch, length = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    torch.set_num_threads(os.cpu_count())
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")
    model.config.use_cache = False
    if kind == "lora":
        from peft import LoraConfig, get_peft_model
        model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=32, lora_dropout=0.0, target_modules=TARGETS))
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    adam = torch.optim.AdamW(trained, lr=1e-5, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01, fused=True)
    torch.manual_seed(0)
    print("ready", torch.__version__, torch.get_num_threads(), flush=True)
    for _ in sys.stdin:
        tokens = torch.randint(3, 49000, (batch, length + 1))
        began = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=numerics == "bf16"):
            logits = model(input_ids=tokens[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        print(time.perf_counter() - began, float(loss), flush=True)


main()
