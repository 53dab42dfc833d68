"""Reference values of tests/vectors/golden, and a tokenizer's bytes, for the API tests."""
import array
import json
import struct
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Golden:
    def __init__(self, name):
        folder = ROOT / "tests/vectors/golden" / name
        self.json = json.loads((folder / "golden.json").read_text())
        self.data = (folder / "golden.safetensors").read_bytes()
        size = struct.unpack("<Q", self.data[:8])[0]
        self.entries, self.start = json.loads(self.data[8:8 + size]), 8 + size
        self.vocab = Vocab(ROOT / "tests/vectors/models" / name)

    def tensor(self, name):
        begin, end = self.entries[name]["data_offsets"]
        values = array.array("f", self.data[self.start + begin:self.start + end])
        return list(values)

    def greedy_text(self, entry):
        """(text of the answer, whether it is certain to its end): ties and the end token stop it."""
        ids, whole = [], True
        for token, margin in zip(entry["ids"], entry["margins"]):
            if token in self.vocab.eos:
                break
            if margin < 1e-3:
                whole = False
                break
            ids.append(token)
        return self.vocab.decode(ids), whole

    def check_greedy(self, entry, text):
        wanted, whole = self.greedy_text(entry)
        wanted, text = wanted.rstrip("\ufffd"), text.rstrip("\ufffd")
        assert text == wanted if whole else text.startswith(wanted)


class Vocab:
    """id -> bytes of a byte-level tokenizer."""

    def __init__(self, folder):
        data = json.loads((folder / "tokenizer.json").read_text())
        config = json.loads((folder / "config.json").read_text())
        self.context, self.size = config["max_position_embeddings"], config["vocab_size"]
        self.eos = self.ids_of(config.get("eos_token_id"))
        more = folder / "generation_config.json"
        if more.exists():
            self.eos |= self.ids_of(json.loads(more.read_text()).get("eos_token_id"))
        shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = [b for b in range(256) if b not in shown]
        alphabet = {**{chr(b): b for b in shown}, **{chr(256 + i): b for i, b in enumerate(hidden)}}
        self.bytes = {i: bytes(alphabet[ch] for ch in text) for text, i in data["model"]["vocab"].items()
                      if all(ch in alphabet for ch in text)}
        self.special = set()
        for token in data["added_tokens"]:
            self.bytes[token["id"]] = token["content"].encode()
            if token["special"]:
                self.special.add(token["id"])

    @staticmethod
    def ids_of(value):
        return set(value) if isinstance(value, list) else set() if value is None else {value}

    def decode(self, ids):
        return b"".join(self.bytes.get(i, b"") for i in ids if i not in self.special).decode("utf-8", "replace")


def near(wanted, got, limit=2e-4):
    assert len(wanted) == len(got)
    worst = max((abs(w - g) for w, g in zip(wanted, got)), default=0)
    assert worst <= limit, worst
