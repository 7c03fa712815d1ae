"""Options as JSON has them: objects, arrays, texts, numbers, true, false and null."""

from __future__ import annotations

import math
from typing import Any


def copied(value: Any) -> Any:
    """`value` with dicts, lists and sets of its own, however deep; other objects are the same."""
    kind = type(value)
    if kind is dict:
        return {name: copied(item) for name, item in value.items()}
    if kind in (list, tuple):
        return kind(copied(item) for item in value)
    return set(value) if kind is set else value


def not_json(value: Any, name: str) -> str:
    """What JSON has no word for in `value`, which is called `name`: "kwargs.when is a date"; "":
    there is nothing."""
    match value:
        case None | str() | int():
            return ""
        case float():
            return "" if math.isfinite(value) else f"{name} is {value}"
        case list() | tuple():
            found = (not_json(item, f"{name}[{place}]") for place, item in enumerate(value))
        case dict():
            found = (
                not_json(item, f"{name}.{key}")
                if isinstance(key, str)
                else f"{name} has the key {key!r}"
                for key, item in value.items()
            )
        case _:
            return f"{name} is a {type(value).__name__}"
    return next(filter(None, found), "")
