"""The nested values of a configuration: dotted names, differences, and secrets in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from .chat import is_list, is_mapping, is_tuple


def without(values: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return nested `values` without the dotted keys `names`."""
    for name in names:
        *tables, last = name.split(".")
        inner = values
        for table in tables:
            inner = inner.get(table, {})
        inner.pop(last, None)
    return values


def differences(
    one: Mapping[str, Any], other: Mapping[str, Any], *, free: Iterable[str] = ()
) -> list[str]:
    """Return the values of `other` that differ from `one`, like "eval.seed is 1, not 0".

    Keys that are `free`, or in a section that is `free`, may differ.
    """
    allowed = tuple(free)
    before, after = flat(one), flat(other)
    return [
        f"{key} is {_said(after, key)}, not {_said(before, key)}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
        and not any(key == name or key.startswith(f"{name}.") for name in allowed)
    ]


_SECRET_IN_URL = re.compile(
    r"[a-z][a-z0-9+.-]*://(?:[^/\s?#@]*@|\S*[?&](?:[\w-]*[_-])?(?:api)?(?:key|token|secret|passw\w*|sig\w*)=)",
    re.I,
)


def secret_in(value: Any, place: str = "") -> str:
    """Return the dotted name of a value, below `place`, that is a URL with a user, a password or a
    key; "" if there is none."""
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if is_mapping(value):
        inside = ((it, f"{place}.{name}".lstrip(".")) for name, it in value.items())
        return secret_in(list(map(str, value)), place) or _first(inside)
    if is_list(value) or is_tuple(value):
        return _first((it, place) for it in value)
    return place if isinstance(value, str) and _SECRET_IN_URL.search(value) else ""


def _first(values: Iterable[tuple[Any, str]]) -> str:
    return next((found for value, place in values if (found := secret_in(value, place))), "")


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        found |= flat(value, f"{name}.") if is_mapping(value) else {name: value}
    return found


def _said(flat: Mapping[str, Any], key: str) -> str:
    return json.dumps(flat[key], ensure_ascii=False, default=str) if key in flat else "unset"
