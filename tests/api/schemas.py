"""Whether a value fits a JSON schema (the part that the tests use), and whether a text may become JSON."""
import json
import re

KINDS = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float), "null": type(None)}


def fits(value, schema, root=None):
    root = root or schema
    if "$ref" in schema:
        at = root
        for part in schema["$ref"].split("/")[1:]:
            at = at[part]
        return fits(value, at, root)
    if "anyOf" in schema:
        return any(fits(value, s, root) for s in schema["anyOf"])
    if "enum" in schema and not any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in schema["enum"]):
        return False
    kind = schema.get("type")
    if kind and (not isinstance(value, KINDS[kind]) or (kind in ("integer", "number") and isinstance(value, bool))):
        return False
    if isinstance(value, dict):
        known = schema.get("properties", {})
        return set(schema.get("required", [])) <= set(value) and all(k in known and fits(v, known[k], root) for k, v in value.items())
    if isinstance(value, list):
        return schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)) and all(
            fits(v, schema.get("items", {}), root) for v in value)
    if isinstance(value, str):
        return (schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
                and re.search(schema.get("pattern", ""), value) is not None)
    if isinstance(value, (int, float)):
        return schema.get("minimum", value) <= value <= schema.get("maximum", value)
    return True


def begins_json(text):
    """The text is cut off, and nothing before the cut is wrong."""
    try:
        json.loads(text)
        return True
    except json.JSONDecodeError as e:
        rest = text[e.pos:]
        return text[:1] == "{" and (e.msg.startswith(("Unterminated", "Invalid \\")) or not rest or rest in "-.eE"
                                    or any(w.startswith(rest) for w in ("true", "false", "null")))
