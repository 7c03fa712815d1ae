"""A client's JSON schema as an engine is given it: what a grammar needs of it, and within bounds.

Engines compile schemas beside what they sample, vLLM even in the event loop of its server, and some
schemas take minutes: what is known to is refused here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

NOTES = frozenset({"title", "description", "default", "examples", "deprecated", "$comment"})
"""Keywords that say nothing of what is valid."""

MAX_DEPTH = 100
"""Of objects and arrays; llguidance reads 128, a few of them ours."""
MAX_PROPERTIES = 500
"""Of one object; a thousand take seconds to compile."""
MULTIPLES = (0.0001, 10_000)
"""Least and greatest `multipleOf`; 1234567 was not compiled after minutes."""
_NAMED = ("properties", "$defs", "definitions")
_HOLDERS = ("items", "prefixItems", "anyOf", "oneOf")
_OPENS = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties"})
_COMPOSES = frozenset({"anyOf", "oneOf", "$ref", "if"})


def prepared(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Objects that list their properties and say nothing of others have no others: a model held to
    the schema would make some up. Where parts of a schema see each other's properties as others,
    it is left open.

    Raises:
        ValueError: it is too deep, or asks for what takes too long to compile.
    """
    _check(schema)
    return _trimmed(schema, close=not any(map(_composes, _objects(schema))))


def _check(schema: Mapping[str, Any]) -> None:
    low, high = MULTIPLES
    for part in _objects(schema):
        properties, step = part.get("properties"), part.get("multipleOf")
        if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
            count = len(properties)
            raise ValueError(f"an object has {count} properties, allowed: {MAX_PROPERTIES}")
        if isinstance(step, int | float) and not low <= step <= high:
            raise ValueError(f"multipleOf: got {step}, allowed: {low} to {high}")


def _objects(value: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Every object within, whatever it means."""
    if depth > MAX_DEPTH:
        raise ValueError(f"the schema is nested too deeply, allowed: {MAX_DEPTH} levels")
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            yield from _objects(item, depth + 1)


def _composes(part: Mapping[str, Any]) -> bool:
    return "allOf" in part or ("properties" in part and not _COMPOSES.isdisjoint(part))


def _trimmed(value: Any, *, close: bool) -> Any:
    if isinstance(value, list):
        return [_trimmed(item, close=close) for item in value]
    if not isinstance(value, dict):
        return value
    inside: dict[str, Any] = {}
    for name, field in value.items():
        if name in _NAMED and isinstance(field, dict):  # what is inside are names, no keywords
            inside[name] = {key: _trimmed(one, close=close) for key, one in field.items()}
        elif name in _HOLDERS:
            inside[name] = _trimmed(field, close=close)
        elif name not in NOTES:
            inside[name] = field
    lists = isinstance(value.get("properties"), dict) and _OPENS.isdisjoint(value)
    return {**inside, "additionalProperties": False} if close and lists else inside
