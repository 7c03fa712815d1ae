"""Types for values that the model writes without any: those of the tool's JSON schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_BOOLEANS = {"true": "true", "1": "true", "false": "false", "0": "false"}


def properties_of(tools: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """Schemas of the parameters of the tool `name`; empty if there is no such tool."""
    for tool in tools:
        function = tool.get("function") or {}
        if function.get("name") == name:
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, dict) else None
            return properties if isinstance(properties, dict) else {}
    return {}


def value_json(text: str, schema: Any) -> str:
    """`text` as JSON of the first type that the schema allows and the text has: null, a number,
    a boolean, an object or array; else a string. JSON among them stays as it was written.

    What is not of the schema's type becomes whatever JSON it is, and a string if it is none: the
    environment is to judge it.
    """
    types, plain = set(types_of(schema)) or {"string"}, text.strip()
    if "null" in types and plain.lower() == "null":
        return "null"
    if types & {"integer", "number"} and (number := _number(plain, whole="number" not in types)):
        return number
    if "boolean" in types and plain.lower() in _BOOLEANS:
        return _BOOLEANS[plain.lower()]
    if (types & {"object", "array"} or "string" not in types) and _is_json(plain):
        return plain
    return json.dumps(text, ensure_ascii=False)


def _number(text: str, *, whole: bool) -> str:
    """A number as JSON; "" if it is none."""
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    return text if _NUMBER.fullmatch(text) else json.dumps(value)


def _is_json(text: str) -> bool:
    try:
        json.dumps(json.loads(text), allow_nan=False)
    except (ValueError, RecursionError):
        return False
    return True


def types_of(schema: Any) -> Iterator[str]:
    """Every type that a schema names, its alternatives included."""
    if not isinstance(schema, dict):
        return
    declared = schema.get("type")
    for name in declared if isinstance(declared, list) else [declared]:
        if isinstance(name, str):
            yield name
    if schema.get("nullable") is True:
        yield "null"
    for value in listed(schema, "enum"):
        yield _type_of(value)
    if "const" in schema:
        yield _type_of(schema["const"])
    for combined in ("anyOf", "oneOf", "allOf"):
        for choice in listed(schema, combined):
            yield from types_of(choice)


def listed(schema: Mapping[str, Any], name: str) -> list[Any]:
    """A keyword whose value is a list; empty if it is none."""
    value = schema.get(name)
    return value if isinstance(value, list) else []


def _type_of(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "array" if isinstance(value, list) else "object"
