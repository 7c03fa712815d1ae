"""The errors of keys of the configuration in our own words: the key, what was given, what is
allowed, and the nearest name. Of pydantic's errors only the types and numbers are used."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from .chat import is_list, is_mapping
from .errors import near_match

SECRET = "secret"
"""The type of errors whose input is not shown, since it may be a key."""
INNER = "inner"
"""The type of errors of a section that another package adds; their texts name the key."""
KEY = "key"
"""The type of errors of one key (`key`) that a section finds; without a text (`said`) the key is
unknown."""

THEIR_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("lr", "learning_rate"), "trainer.learning_rate"),
    "kl": "algo.kl.coef",
    "num_generations": "rollout.group_size",
    **dict.fromkeys(("max_new_tokens", "max_completion_length"), "rollout.max_tokens"),
}
"""The keys for which other libraries have these names."""

_SECTION = "expected a section, which is a table of keys"
_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "expected a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "expected a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "expected true or false"),
    **dict.fromkeys(("model_type", "model_attributes_type"), _SECTION),
    "string_type": "expected text",
    "dict_type": "expected a table of keys",
    "list_type": "expected a list",
    "finite_number": "expected a finite number",
    "missing": "has no default; give it a value",
    "greater_than": "too small; allowed: more than {gt}",
    "greater_than_equal": "too small; allowed: at least {ge}",
    "less_than": "too large; allowed: less than {lt}",
    "less_than_equal": "too large; allowed: at most {le}",
    "too_short": "has too few values; allowed: at least {min_length}",
    "too_long": "has too many values; allowed: at most {max_length}",
    "string_too_short": "too short; allowed: at least {min_length} characters",
    "string_too_long": "too long; allowed: at most {max_length} characters",
    "literal_error": "unknown; allowed: {expected}",
    "union_tag_invalid": "unknown; allowed: {expected_tags}",
}
"""The texts of errors by pydantic's type, with the numbers of its context."""


SAVE_FIRST = (
    "the processes of a run and --resume read rows from a file: save them, {}, and pass its name, "
    '"rows.jsonl"'
)


def saved_as(value: object) -> str:
    """Return the line of code that saves a table of rows in a file; "" if the value is none."""
    if is_list(value) and value and is_mapping(value[0]):
        return 'Path("rows.jsonl").write_text("\\n".join(map(json.dumps, rows)))'
    if hasattr(value, "write_ndjson"):
        return 'rows.write_ndjson("rows.jsonl")'
    of_frame = ', orient="records", lines=True' if hasattr(value, "iloc") else ""
    is_table = hasattr(value, "to_json") and hasattr(value, "__len__")
    return f'rows.to_json("rows.jsonl"{of_frame})' * is_table


def key_error(key: str, said: object = "") -> PydanticCustomError:
    """Return the error of a key that the validator of its section raises; without a text the key
    is unknown."""
    return PydanticCustomError(KEY, "{said}", {"key": key, "said": str(said)})


def key_lines(
    error: ValidationError, place: Callable[[Sequence[int | str]], str], near: Callable[[str], str]
) -> list[str]:
    """Return a line for each wrong key. `place` returns the dotted key of a location, and `near`
    the hint for an unknown key."""
    lines: list[str] = []
    for item in error.errors(include_url=False):
        kind, got, context = item["type"], item["input"], item.get("ctx", {})
        where = place((*item["loc"], context["key"]) if kind == KEY else item["loc"])
        said = _said(kind, context, got) or item["msg"].removeprefix("Value error, ")
        if kind == "union_tag_invalid":
            where, got = f"{where}.type", context.get("tag")
        if kind == "extra_forbidden" or (kind == KEY and not context["said"]):
            lines.append(f"unknown key {where}; {near(where)}")
        elif kind == INNER:
            lines.append(said)
        elif kind in (SECRET, KEY):
            lines.append(f"{where}: {said}" if where else said)
        elif where and said.startswith(_SECTION):
            near_name = THEIR_NAMES.get(where.rpartition(".")[2])
            keys = f"did you mean {near_name}?" if near_name else near(f"{where}.")
            lines.append(f"{where}: {said} (got {got!r:.200}); {keys}")
        else:
            # Without a place the error is about several sections: the input would be the whole
            # file.
            lines.append(f"{where}: {said} (got {got!r:.200})" if where else said)
    return lines


def _said(kind: str, context: Mapping[str, Any], got: Any) -> str:
    """Return the text of an error; "" if pydantic's own text is that of a check of ours."""
    own = cast("type[Any]", type(got))
    names = sys.stdlib_module_names
    if kind == "string_type" and not isinstance(got, type) and own.__module__ not in names:
        return f"expected text, or a class or function: {own.__name__}, not {own.__name__}(...)"
    if kind == "tuple_type":
        return f"expected a list, such as [{json.dumps(got, default=str)}]"
    said = _WORDS.get(kind, "").format_map(context)
    tag = context.get("tag", got)
    if kind in ("literal_error", "union_tag_invalid") and isinstance(tag, str):
        said += near_match(tag, re.findall(r"'([^']*)'", said))
    return said


def names_of(model: type[BaseModel]) -> list[str]:
    """Return the names of the keys of a section, also those that other packages add."""
    added: Callable[[], Sequence[str]] = getattr(model, "added_names", tuple)
    return [*model.model_fields, *added()]


def table_of(values: Any, short: str) -> Any:
    """Return the table of a section for which a single value stands, that of the key `short`."""
    given = values is None or is_mapping(values) or isinstance(values, BaseModel)
    return values if given or not short else {short: values}
