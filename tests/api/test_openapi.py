"""GET /openapi.json and the live server say the same: every path, method, status and shape is walked."""
import json
import re

import pytest
from conftest import MODELS, TRAINER
from trainer import FIELDS

METHODS = {"get", "post", "put", "patch", "delete"}
PLACES = {"id": "1", "key": "nobody", "name": "nobody"}


@pytest.fixture(scope="module")
def own(make_server):
    return make_server()


@pytest.fixture(scope="module")
def doc(own):
    answer = own.get("/openapi.json")
    assert answer.status == 200 and answer.header("Content-Type") == "application/json"
    return answer.json()


def operations(doc):
    return [(path, method, op) for path, item in doc["paths"].items() for method, op in item.items()]


def check(doc, schema, value, at="$"):
    """The part of JSON Schema that the document uses; any other keyword fails."""
    known = {"$ref", "type", "properties", "required", "items", "enum", "const", "anyOf", "minimum", "maximum", "pattern",
             "format", "maxLength", "minItems", "maxItems", "additionalProperties"}
    assert set(schema) <= known, (at, schema)
    if "$ref" in schema:
        return check(doc, doc["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], value, at)
    if "anyOf" in schema:
        assert any(fits(doc, s, value) for s in schema["anyOf"]), (at, value)
    if "const" in schema:
        assert value == schema["const"], (at, value)
    if "enum" in schema:
        assert value in schema["enum"], (at, value)
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert any(is_type(t, value) for t in types), (at, value, types)
    if isinstance(value, dict):
        missing = set(schema.get("required", [])) - set(value)
        assert not missing, (at, missing)
        for name, part in schema.get("properties", {}).items():
            if name in value:
                check(doc, part, value[name], f"{at}.{name}")
    if isinstance(value, list):
        for i, one in enumerate(value):
            check(doc, schema.get("items", {}), one, f"{at}[{i}]")
    if isinstance(value, str) and "pattern" in schema:
        assert re.search(schema["pattern"], value), (at, value)


def fits(doc, schema, value):
    try:
        check(doc, schema, value)
        return True
    except AssertionError:
        return False


def is_type(name, value):
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return {"object": isinstance(value, dict), "array": isinstance(value, list), "string": isinstance(value, str),
            "boolean": isinstance(value, bool), "null": value is None, "number": number,
            "integer": number and value == int(value)}[name]


def documented(doc, path, method, answer):
    """The answer is one that the document names: status, content type, shape."""
    responses = doc["paths"][path][method]["responses"]
    entry = responses.get(str(answer.status), responses["default"])
    content = entry["content"]
    kind = answer.header("Content-Type")
    found = [m for m in content if kind.startswith(m)]
    assert found, (path, method, answer.status, kind)
    if found[0] == "application/json":
        check(doc, content[found[0]]["schema"], answer.json())
    return answer


def test_the_document_is_whole(doc):
    assert doc["openapi"] == "3.1.0" and doc["info"]["version"]
    ids = [op["operationId"] for _, _, op in operations(doc)]
    assert len(ids) == len(set(ids)) > 60
    for path, method, op in operations(doc):
        assert method in METHODS and op["summary"] and len(op["tags"]) == 1
        assert sorted(p["name"] for p in op["parameters"]) == sorted(re.findall(r"\{(\w+)\}", path))
        assert "default" in op["responses"] and len(op["responses"]) == 2
    refs = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(doc)))
    assert refs <= set(doc["components"]["schemas"])
    assert not set(doc["components"]["schemas"]) - refs, "a schema that nobody uses"


def pattern(path):
    """The addresses of a path: an id is a number."""
    return re.compile(re.sub(r"\\{(\w+)\\}", lambda m: "[1-9][0-9]*" if m[1] == "id" else "[^/]+", re.escape(path)))


def test_each_path_has_the_methods_of_the_document_and_no_others(own, doc):
    for path, item in doc["paths"].items():
        if path.startswith("/api/v1/"):
            continue  # a face of its own answers there
        address = re.sub(r"\{(\w+)\}", lambda m: PLACES[m[1]], path)
        answer = own.call("PUT", address)
        assert answer.status == 405, (path, answer)
        allowed = set(answer.header("Allow").lower().split(", "))
        others = [set(other) for p, other in doc["paths"].items() if p != path and pattern(p).fullmatch(address)]
        assert allowed == set(item).union(*others), path


def test_what_is_not_in_the_document_is_not_there(own, doc):
    for path in doc["paths"]:
        if not path.endswith("}") and not path.startswith("/api/v1/"):
            assert own.get(re.sub(r"\{(\w+)\}", lambda m: PLACES[m[1]], path) + "/x/nope").status in (404, 503), path


def test_every_get_answers_as_described(own, doc):
    for path, item in doc["paths"].items():
        if "get" in item and not path.startswith("/api/v1/"):
            address = path.replace("{id}", str(own.row)).replace("/v1/models/{name}", f"/v1/models/{own.model}").replace("{key}", "nobody")
            answer = documented(doc, path, "get", own.get(address))
            assert answer.status == 200 or "{key}" in path or answer.status == 503, (path, answer)


def test_a_broken_body_is_an_error_of_the_face(own, doc):
    head = {"Authorization": f"Bearer {TRAINER}", "Content-Type": "application/json"}
    for path, method, op in operations(doc):
        if "application/json" in op.get("requestBody", {}).get("content", {}) and not path.startswith("/api/v1/"):
            address = path.replace("{id}", str(own.row)).replace("{key}", "nobody")
            answer = documented(doc, path, method, own.call(method.upper(), address, b"{", headers=head))
            assert 400 <= answer.status < 500, (path, answer)


def test_routes_that_say_they_need_a_token_need_one(own, doc):
    for path, method, op in operations(doc):
        if op.get("security") and not path.startswith("/api/v1/"):
            answer = documented(doc, path, method, own.call(method.upper(), path, {}))
            assert answer.status == 401, (path, answer)


def test_bodies_that_the_document_allows_are_taken(own, doc):
    """An example of each request body fits its schema and gets an answer that fits too."""
    chat = {"model": own.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "temperature": 0, "stop": ["x"]}
    examples = [
        ("/v1/chat/completions", chat, 200),
        ("/v1/completions", {"model": own.model, "prompt": [[5, 6], [7]], "max_tokens": 2, "logprobs": 1}, 200),
        ("/v1/embeddings", {"model": own.model, "input": ["a"], "dimensions": 4, "pooling": "last"}, 200),
        ("/api/models/preview", {"source": "local", "local_path": str(MODELS / "tiny-qwen2")}, 200),
        ("/api/models", {"source": "local", "local_path": str(MODELS / "tiny-qwen2")}, 202),
        ("/api/models/{id}/lease", {"holder": "h", "reason": "r"}, 201),
        ("/api/weights/attach", {"client": "tests"}, 201),
    ]
    for path, body, status in examples:
        schema = doc["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        check(doc, schema, body)
        answer = own.post(path.replace("{id}", str(own.row)), body, headers={"Authorization": f"Bearer {TRAINER}"})
        assert answer.status == status, (path, answer)
        documented(doc, path, "post", answer)
        if path.endswith("/lease"):
            lease = answer.json()["data"]["lease_id"]
            ended = own.call("DELETE", f"/api/models/{own.row}/lease", headers={"X-miLLM-Lease": lease})
            documented(doc, path, "delete", ended)
    attachment = answer.json()["data"]["attachment_id"]
    body = {"manifest": {**FIELDS, "run_id": "contract", "step": 1}}
    check(doc, {"$ref": "#/components/schemas/SaveRequest"}, body)
    assert documented(doc, "/api/weights/save", "post", own.weights("save", body, attachment)).status == 201
    documented(doc, "/api/weights/detach", "post", own.weights("detach", {}, attachment))


def test_fields_of_v1_stand_with_their_ranges_and_the_ranges_hold(own, doc):
    for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}), ("/v1/completions", {"prompt": "a"}),
                       ("/v1/embeddings", {"input": "a"})):
        name = doc["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
        fields = doc["components"]["schemas"][name]["properties"]
        assert all(fields.values()), "a field without a schema"
        model = {"model": own.get("/v1/models").json()["data"][0]["id"]}
        for field, schema in fields.items():
            if "number" in schema.get("type", []) or "integer" in schema.get("type", []) and "null" in schema["type"]:
                for value in (schema["minimum"] - 1, schema["maximum"] + max(1, schema["maximum"])):
                    answer = own.post(path, {**model, **body, field: value})
                    assert answer.status == 400 and answer.json()["error"]["param"] == field, (path, field, value, answer)


def test_operations_for_clients_have_a_name_they_can_use(doc):
    assert all(re.fullmatch(r"[a-z0-9_]+", op["operationId"]) for _, _, op in operations(doc))
    assert doc["paths"]["/v1/models/{name}"]["get"]["operationId"] == "get_v1_models_rest"
