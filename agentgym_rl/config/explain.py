"""The errors of pydantic in the words of a configuration: its dotted keys, and what they take."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agentgym_rl.core import INNER, SECRET, field_of, section_types, type_of

_EXPECTED: Mapping[str, str] = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "expected a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "expected a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "expected true or false"),
    **dict.fromkeys(("model_type", "model_attributes_type"), "expected a section with keys"),
    "string_type": "expected a text",
    "finite_number": "expected a finite number",
    "literal_error": "expected {expected}",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
}
"""The descriptions of what a key takes, by the type of pydantic's error."""


def in_words(item: ErrorDetails) -> str:
    """Return what is wrong with a value, without pydantic's names of types."""
    if item["type"] in _EXPECTED:
        return _EXPECTED[item["type"]].format(**item.get("ctx", {}))
    return item["msg"].removeprefix("Value error, ")


def explain(model: type[BaseModel], error: ValidationError) -> str:
    """Return a line for each error of a configuration, with the dotted key and the value."""
    lines = ["the configuration is wrong:"]
    for item in error.errors():
        said, got = in_words(item), item["input"]
        where = _place(model, item["loc"])
        if item["type"] == "union_tag_invalid":
            context = item.get("ctx", {})
            where, got = f"{where}.type", context.get("tag")
            said = f"unknown; allowed: {context.get('expected_tags')}"
        if item["type"] == "tuple_type":
            said = f"expected a list, such as [{json.dumps(got)}]"
        if item["type"] in ("literal_error", "union_tag_invalid") and isinstance(got, str):
            near = difflib.get_close_matches(got, re.findall(r"'([^']*)'", said), n=1)
            said += f"; did you mean {near[0]!r}?" if near else ""
        if item["type"] == INNER:
            lines.append(f"  {said}")
            continue
        if item["type"] == SECRET:
            lines.append(f"  {where}: {said}" if where else f"  {said}")
            continue
        # Without a place the error is about several sections: the input would be the whole file.
        lines.append(f"  {where}: {said} (got {got!r})" if where else f"  {said}")
    return "\n".join(lines)


def _place(model: type[BaseModel], loc: Sequence[int | str]) -> str:
    """Return the dotted key of an error, without pydantic's own mention of a section's type."""
    kinds: Sequence[type[BaseModel]] = (model,)
    parts: list[str] = []
    for part in loc:
        fields = [it for kind in kinds if (it := field_of(kind, str(part))) is not None]
        if not fields and part in [type_of(kind) for kind in kinds if "type" in kind.model_fields]:
            continue
        if not fields and isinstance(part, str):
            break  # inside a plain value: pydantic's name of one of its types
        parts.append(str(part))
        kinds = section_types(fields[0]) if fields else ()
    return ".".join(parts)
