"""Types for values that the model writes without any: those of the tool's JSON schema.

Qwen3-Coder and Qwen3.5: tags in a block, and values without quotes or types.

<tool_call>
<function=calculator>
<parameter=expression>
3*4
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .blocks import END, BlockParser
from .events import ToolCall

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


_FUNCTION, _PARAMETER, _VALUE_END = "<function=", "<parameter=", "</parameter>"
_NAME = re.compile(r"<function=([^<>\n]*)>")
_SPACE = re.compile(r"\s*")


def parse_block(block: str, tools: Sequence[Mapping[str, Any]]) -> ToolCall:
    """The call inside one block: its values in a JSON object, typed as in the tool's schema."""
    body = block.strip()
    name = _NAME.match(body)
    values = _values(body[name.end() :]) if name else None
    if name and values is not None and name[1].strip():
        properties = properties_of(tools, name[1].strip())
        pairs = [
            f"{json.dumps(key, ensure_ascii=False)}: {value_json(value, properties.get(key))}"
            for key, value in values.items()
        ]
        return ToolCall(name[1].strip(), "{" + ", ".join(pairs) + "}")
    found = _NAME.search(body)
    return ToolCall(found[1].strip() if found else "", body, malformed=True)


def _values(text: str) -> dict[str, str] | None:
    """What stands between the name and the close of a function; None if it is malformed."""
    values: dict[str, str] = {}
    at = _skip(text, 0)
    while text.startswith(_PARAMETER, at):
        key_end = text.find(">", at)
        end = text.find(_VALUE_END, key_end)
        key = text[at + len(_PARAMETER) : key_end].strip()
        if key_end < 0 or end < 0 or not key or "\n" in key:
            return None
        # the line breaks next to the tags are the format's, all else is the value's
        values[key] = text[key_end + 1 : end].removeprefix("\n").removesuffix("\n")
        at = _skip(text, end + len(_VALUE_END))
    return values if text[at:] == "</function>" else None


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


class Qwen3XmlParser(BlockParser):
    """Content and calls. Values may hold a close tag, but not the beginning of another block
    after one."""

    unquoted = re.compile(END + r"|(?P<quote><parameter=)")
    quoted = re.compile(END + r"|(?P<unquote></parameter>)|(?P<broken><tool_call>)")

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self._tools = tools

    def read(self, block: str) -> ToolCall:
        return parse_block(block, self._tools)
