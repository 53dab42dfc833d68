#!/usr/bin/env python3
"""Supervised fine-tuning of a served model through the training API: LoRA or all weights.

    supervised.py --key KEY [--mode lora|full] [--steps N]

Trains a dozen answers in the voice of a sailor, saves the state with its optimizer, and asks the trained weights
questions that it has seen and some that it has not."""
from lessons import HELD_OUT, LESSONS, arguments, connect, curve, datum, prompt_ids

from weaver import types

RATE = {"lora": 2e-3, "full": 2e-5}


def ask(sampler, tokenizer, question):
    reply = sampler.sample(prompt=types.ModelInput.from_ints(prompt_ids(tokenizer, question)),
                           sampling_params=types.SamplingParams(max_tokens=40, temperature=0.0))
    print(f"  {question}\n    {reply['sequences'][0]['text'].strip()}")


def main():
    args = arguments(__doc__)
    args.add_argument("--mode", choices=["lora", "full"], default="lora")
    args = args.parse_args()
    service = connect(args)
    if args.mode == "lora":
        run = service.create_model(base_model=args.base_model, lora_config=types.LoraConfig(rank=16, seed=1))
    else:
        run = service.create_model(base_model=args.base_model, training_mode="full_ft")
    tokenizer = run.get_tokenizer()
    data = [datum(tokenizer, q, a) for q, a in LESSONS]
    losses = []
    for step in range(args.steps or 20):
        made = run.forward_backward(data, "cross_entropy")
        run.optim_step(types.AdamParams(learning_rate=RATE[args.mode]))
        losses.append(made["metrics"]["loss"])
        print(f"step {step + 1:3d}  loss {losses[-1]:.4f}", flush=True)
    curve(losses, "loss")
    saved = run.save_state(name=f"sailor-{args.mode}", checkpoint_type="weight_and_optimizer")
    print(f"saved {saved.path}")
    sampler = run.save_weights_and_get_sampling_client(name="sailor")
    for question in [LESSONS[0][0], LESSONS[6][0], *HELD_OUT]:
        ask(sampler, tokenizer, question)
    service.close()


main()
