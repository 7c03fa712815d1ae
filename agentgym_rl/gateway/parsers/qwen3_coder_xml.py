"""The format of Qwen3-Coder and Qwen3.5: tags in a block, and values without quotes or types.

Qwen3 itself has the format of Hermes (hermes.py); `families` chooses.

<tool_call>
<function=calculator>
<parameter=expression>
3*4
</parameter>
</function>
</tool_call>

A value has no type of its own: the tool's JSON schema and the text determine it (`value_json`). The
grammar of a value therefore allows only text that reads back as valid: any text where the schema
takes any string, the choices of an enum, JSON where no strings are allowed. Other schemas are
refused. (Strings inside JSON may still spell a close tag: no grammar can bar it there. The call is
then malformed, like one that an unconstrained model writes.)
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .lark import NOTES, Lark
from .parser import CLOSE, END, OPEN, BlockParser, ToolCall

_FRAME = frozenset(
    {"type", "properties", "required", "additionalProperties", "$schema", "$defs", "definitions"}
)
_PLAIN = frozenset({"string", "integer", "number", "boolean", "null"})
_BREAK = "\n"
_VALUE_END = "</parameter>"
_TAIL = f"{_BREAK}{_VALUE_END}{_BREAK}"


def call_grammar(lark: Lark, name: str, parameters: Mapping[str, Any]) -> str:
    """Return the expression of a call of one function, in `lark`: its parameters in the declared
    order, where those that are not required may be left out.

    Raises:
        ValueError: the format cannot express the name, or a constraint on a value.
    """
    if name != name.strip() or not name or set("<>\n") & set(name):
        raise _refused(f"a function named {name!r}")
    if odd := sorted(parameters.keys() - _FRAME - NOTES):
        raise _refused(f"{odd[0]!r} in the parameters of {name!r}")
    required = listed(parameters, "required")
    properties = parameters.get("properties") or {}
    if not isinstance(properties, dict) or not all(isinstance(key, str) for key in required):
        raise _refused(f"parameters of {name!r} that are not named")
    parts = [lark.exactly(f"{OPEN}\n<function={name}>\n")]
    for key in dict.fromkeys([*properties, *required]):
        part = _parameter(lark, key, properties.get(key, {}), parameters)
        parts.append(part if key in required else f"({part})?")
    return " ".join([*parts, lark.exactly(f"</function>\n{CLOSE}")])


def _parameter(lark: Lark, key: str, schema: Any, parameters: Mapping[str, Any]) -> str:
    if key != key.strip() or not key or set(">\n") & set(key):
        raise _refused(f"a parameter named {key!r}")
    value = _value(lark, key, schema if isinstance(schema, dict) else {}, parameters)
    return f"{lark.exactly(f'<parameter={key}>{_BREAK}')} {value}"


def _value(lark: Lark, key: str, schema: Mapping[str, Any], parameters: Mapping[str, Any]) -> str:
    """Return the expression of a parameter's value and of the tag that ends it."""
    tail = lark.exactly(_TAIL)
    if "enum" in schema or "const" in schema:
        values = listed(schema, "enum") if "enum" in schema else [schema["const"]]
        if not values:
            raise _refused(f"no value of {key!r}")
        choices = [lark.exactly(_choice(key, value, schema)) for value in values]
        return f"{lark.any_of(choices)} {tail}"
    types = set(types_of(schema))
    if "$ref" in schema or any("$ref" in branch for branch in _branches(schema)):
        raise _refused(f"a $ref as the schema of {key!r}")
    if types and "string" not in types:
        defs = {name: parameters[name] for name in ("$defs", "definitions") if name in parameters}
        return f"{lark.json({**defs, **schema})} {tail}"
    return _text(lark, key, schema)


def _text(lark: Lark, key: str, schema: Mapping[str, Any]) -> str:
    """Return the expression of any text, if the schema accepts all types it may be read as."""
    for branch in [schema, *_branches(schema)]:
        if odd := sorted(branch.keys() - NOTES - {"type", "nullable", "anyOf", "oneOf"}):
            raise _refused(f"{odd[0]!r} in the schema of {key!r}, which may be a string")
        if not set(types_of(branch)) <= _PLAIN:
            raise _refused(f"{key!r}, which may be a string or an object or array")
    # the model writes the line break before the close tag; it is not part of the value
    return f"{lark.text_to(_VALUE_END, OPEN, CLOSE)} {lark.exactly(_BREAK)}"


def _branches(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    either = [*listed(schema, "anyOf"), *listed(schema, "oneOf")]
    direct = [branch for branch in either if isinstance(branch, dict)]
    return [one for branch in direct for one in [branch, *_branches(branch)]]


def _choice(key: str, value: Any, schema: Mapping[str, Any]) -> str:
    """Return the text of one value of an enum."""
    text = value if isinstance(value, str) else json.dumps(value)
    back = json.loads(value_json(text, schema))
    if back != value or type(back) is not type(value) or _VALUE_END in text or OPEN in text:
        raise _refused(f"the value {value!r} of {key!r}")
    return text


def _refused(what: str) -> ValueError:
    return ValueError(
        f"{what} cannot be forced in this model's format of calls (qwen3_xml); allowed: "
        "parameters of plain types, enums, and JSON where no string is allowed"
    )


_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_BOOLEANS = {"true": "true", "1": "true", "false": "false", "0": "false"}


def properties_of(tools: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """Return the parameter schemas of the tool `name`; empty if there is no such tool."""
    for tool in tools:
        function = tool.get("function") or {}
        if function.get("name") == name:
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, dict) else None
            return properties if isinstance(properties, dict) else {}
    return {}


def value_json(text: str, schema: Any) -> str:
    """Return `text` as JSON of the first type that the schema allows and the text fits: null, a
    number, a boolean, an object or array; else a string. JSON text stays as it was written.

    A text that fits no type of the schema becomes its own JSON value, or a string if it is not
    JSON: the environment must judge it.
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
    """Return a number as JSON; "" if `text` is not a number."""
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
    """Yield every type that a schema names, its alternatives included."""
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
    """Return a keyword's list; empty if the value is not a list."""
    value = schema.get(name)
    return value if isinstance(value, list) else []


def _type_of(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "array" if isinstance(value, list) else "object"


_FUNCTION, _PARAMETER = "<function=", "<parameter="
_NAME = re.compile(r"<function=([^<>\n]*)>")
_SPACE = re.compile(r"\s*")


def parse_block(block: str, tools: Sequence[Mapping[str, Any]]) -> ToolCall:
    """Parse the call inside one block: its values as JSON, typed by the tool's schema."""
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
    """Return the parameters of a function by name; None if the text is malformed."""
    values: dict[str, str] = {}
    at = _skip(text, 0)
    while text.startswith(_PARAMETER, at):
        key_end = text.find(">", at)
        end = text.find(_VALUE_END, key_end)
        key = text[at + len(_PARAMETER) : key_end].strip()
        if key_end < 0 or end < 0 or not key or "\n" in key:
            return None
        # the line breaks next to the tags belong to the format, all other text to the value
        values[key] = text[key_end + 1 : end].removeprefix("\n").removesuffix("\n")
        at = _skip(text, end + len(_VALUE_END))
    return values if text[at:] == "</function>" else None


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


class Qwen3XmlParser(BlockParser):
    """A parser of content and calls. Values may hold a close tag, but not a close tag and then the
    beginning of another block."""

    unquoted = re.compile(END + r"|(?P<quote><parameter=)")
    quoted = re.compile(END + r"|(?P<unquote></parameter>)|(?P<broken><tool_call>)")

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self._tools = tools

    def read(self, block: str) -> ToolCall:
        return parse_block(block, self._tools)
