#!/usr/bin/env python3
"""A small policy-gradient loop on a served model: it samples from its own exports and trains on what it sampled.

    policy_gradient.py --key KEY [--steps N]

The reward likes answers of exactly eight words. Each step exports the adapter, draws a group of answers to each
question, compares each answer with its group, and takes one step of importance sampling."""
from lessons import HELD_OUT, LESSONS, arguments, connect, curve, prompt_ids

from weaver import types

GROUP, WORDS, TOKENS = 8, 8, 24


def reward(text):
    return max(0.0, 1.0 - abs(len(text.split()) - WORDS) / WORDS)


def datum(asked, sequence, advantage):
    """Position i predicts token i + 1; only the tokens that were drawn have an advantage."""
    ids, read = asked + sequence["tokens"], len(asked) - 1
    return types.Datum.from_raw(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "logprobs": [0.0] * read + sequence["logprobs"],
                        "advantages": [0.0] * read + [advantage] * len(sequence["tokens"]),
                        "weights": [0.0] * read + [1.0] * len(sequence["tokens"])})


def main():
    args = arguments(__doc__).parse_args()
    service = connect(args)
    run = service.create_model(base_model=args.base_model, lora_config=types.LoraConfig(rank=16, seed=2))
    tokenizer = run.get_tokenizer()
    questions = [prompt_ids(tokenizer, q) for q in [q for q, _ in LESSONS[:4]] + HELD_OUT[:2]]
    rewards = []
    for step in range(args.steps or 20):
        sampler = run.save_weights_and_get_sampling_client(name=f"policy-{step}", ttl_seconds=600)
        data, got = [], []
        for asked in questions:
            drawn = sampler.sample(prompt=types.ModelInput.from_ints(asked), num_samples=GROUP,
                                   sampling_params=types.SamplingParams(max_tokens=TOKENS, temperature=1.0,
                                                                        seed=1000 * step))["sequences"]
            values = [reward(s["text"]) for s in drawn]
            mean = sum(values) / GROUP
            got += values
            data += [datum(asked, s, v - mean) for s, v in zip(drawn, values)]
        run.forward_backward(data, "importance_sampling")
        run.optim_step(types.AdamParams(learning_rate=1e-3))
        rewards.append(sum(got) / len(got))
        print(f"step {step + 1:3d}  mean reward {rewards[-1]:.3f}  ({drawn[0]['text'].strip()[:60]!r})", flush=True)
    curve(rewards, "mean reward")
    service.close()


main()
