"""Constrained decoding beside free text: what a mask costs a token."""
import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor

from .peers import smollm
from .table import Table, Verdict, bench
from .tools import Server, build, quiet

TOKENS = 160
NO_END = {"2": -100, "0": -100}  # SmolLM2's end tokens never come: every answer has its full length
ASK = [{"role": "user", "content": "List the lighthouses of the coast, with their keepers, heights and notes, as JSON."}]


def people(key):
    """An array that is never full; the key makes the schema, and so its masks, new."""
    entry = {"type": "object", "required": [key, "height", "lit", "notes"], "additionalProperties": False, "properties": {
        key: {"type": "string", "minLength": 3, "maxLength": 60}, "height": {"type": "number", "minimum": 0, "maximum": 300},
        "lit": {"type": "boolean"}, "kind": {"enum": ["tower", "skeletal", "screw-pile"]},
        "notes": {"type": "array", "items": {"type": "string"}, "maxItems": 5}}}
    return {"type": "json_schema", "json_schema": {"name": "lights", "schema": {"type": "array", "items": entry, "minItems": 500}}}


def ms_per_token(server, name, seed, form=None):
    body = {"model": name, "messages": ASK, "max_tokens": TOKENS, "temperature": 0.8, "seed": seed, "logit_bias": NO_END,
            **({"response_format": form} if form else {})}
    link = http.client.HTTPConnection(server.address, timeout=600)
    start = time.monotonic()
    link.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = json.loads(link.getresponse().read())
    took = time.monotonic() - start
    link.close()
    return took * 1e3 / answer["usage"]["completion_tokens"]


def together(server, name, n, seed, form=None):
    with ThreadPoolExecutor(n) as pool:
        return sum(pool.map(lambda i: ms_per_token(server, name, seed + i, form), range(n))) / n


@bench("json-mode", "time a token, temperature 0.8, SmolLM2-135M: any JSON object and a schema never seen before, beside free text")
def json_mode(pairs):
    build("all")
    t = Table("ms a token")
    with Server() as s:
        s.load(smollm())
        name = s.name()
        ms_per_token(s, name, 0, {"type": "json_object"})  # the trie of the vocabulary is made once
        for i in range(pairs):
            for n in (1, 8):
                quiet()
                t.add(f"{n} free", together(s, name, n, 100 * i))
                t.add(f"{n} json_object", together(s, name, n, 100 * i, {"type": "json_object"}))
                t.add(f"{n} new schema", together(s, name, n, 100 * i, people(f"name_{i}_{n}")))
    t.show()
    return [Verdict(f"json-mode-{n}-{what.replace(' ', '-')}", t.ratio(f"{n} {what}", f"{n} free"), 1.10, at_least=False)
            for n in (1, 8) for what in ("json_object", "new schema")]
