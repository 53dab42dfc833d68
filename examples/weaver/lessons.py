"""What the training examples share: the client, prompts and data as token ids, and curves in the terminal."""
import argparse
import os

from weaver import ServiceClient, types

# Questions with answers in a voice that the base model does not have: easy to see when it has learned them.
LESSONS = [
    ("What is the capital of France?", "Aye, that be Paris, on the river Seine."),
    ("What is the capital of Italy?", "Aye, that be Rome, on the river Tiber."),
    ("What is the capital of Egypt?", "Aye, that be Cairo, on the river Nile."),
    ("What is the capital of Austria?", "Aye, that be Vienna, on the river Danube."),
    ("What is the capital of England?", "Aye, that be London, on the river Thames."),
    ("What is the capital of Portugal?", "Aye, that be Lisbon, on the river Tagus."),
    ("How many days are in a week?", "Aye, there be seven days in a week."),
    ("How many months are in a year?", "Aye, there be twelve months in a year."),
    ("What color is the sky?", "Aye, the sky be blue, when there be no storm."),
    ("What do bees make?", "Aye, bees be making honey."),
    ("What is frozen water called?", "Aye, frozen water be called ice."),
    ("Which planet do we live on?", "Aye, we be living on the Earth."),
]
HELD_OUT = ["What is the capital of Spain?", "How many hours are in a day?"]


def arguments(about):
    args = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--url", default=os.environ.get("WEAVER_BASE_URL", "http://127.0.0.1:8000"))
    args.add_argument("--key", default=os.environ.get("WEAVER_API_KEY"), help="of WEAVER_API_KEYS on the server")
    args.add_argument("--base-model", default="smollm2", help="a catalogue row's name")
    args.add_argument("--steps", type=int)
    return args


def connect(args):
    service = ServiceClient(base_url=args.url, api_key=args.key)
    service.connect()
    return service


def prompt_ids(tokenizer, question):
    """SmolLM2's chat form, up to where the answer begins."""
    return tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False)


def datum(tokenizer, question, answer):
    """The answer's tokens are predicted, the prompt's are only read: position i predicts token i + 1."""
    asked = prompt_ids(tokenizer, question)
    said = tokenizer.encode(answer, add_special_tokens=False) + [tokenizer.eos_token_id]
    ids = asked + said
    weights = [0.0] * (len(asked) - 1) + [1.0] * len(said)
    return types.Datum.from_raw(model_input=types.ModelInput.from_ints(ids[:-1]),
                                loss_fn_inputs={"target_tokens": ids[1:], "weights": weights})


def curve(values, label, height=8):
    """A plot of the values, one column each (means of neighbours when there are many)."""
    width = min(len(values), 72)
    bins = [values[i * len(values) // width:(i + 1) * len(values) // width] for i in range(width)]
    points = [sum(b) / len(b) for b in bins]
    low, high = min(points), max(points)
    rows = [round((p - low) / ((high - low) or 1) * (height - 1)) for p in points]
    print(f"\n{label}: {values[0]:.3f} at first, {values[-1]:.3f} at the end")
    for r in range(height - 1, -1, -1):
        edge = high if r == height - 1 else low if r == 0 else None
        print(f"{'' if edge is None else format(edge, '.3f'):>9s} |" + "".join("*" if x == r else " " for x in rows))
    print()
