"""Calls as tags: a name, and values without quotes or types.

    <tool_call> <function=f> <parameter=x> 1 </parameter> </function> </tool_call>     Qwen3-Coder
    <tool_call>f <arg_key>x</arg_key> <arg_value>1</arg_value> </tool_call>            GLM
    <invoke name="f"> <parameter name="x">1</parameter> </invoke>                      MiniMax

A value has no type of its own: the tool's JSON schema and the text determine it (`value_json`). The
grammar of a value therefore allows only text that reads back as valid: any text where the schema
takes any string, the choices of an enum, JSON where no strings are allowed. Other schemas are
refused. (Strings inside JSON may still spell a close tag: no grammar can bar it there. The call is
then malformed, like one that an unconstrained model writes.)
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentgym_rl.gateway import Frame, GrammarText, ToolCall, Tools

from .lark import NOTES

_FRAME = frozenset(
    {"type", "properties", "required", "additionalProperties", "$schema", "$defs", "definitions"}
)
_PLAIN = frozenset({"string", "integer", "number", "boolean", "null"})
_BREAK = "\n"


@dataclass(frozen=True)
class Tags:
    """The tags of a family, as its template writes them: {name} and {key} stand for names.

    `begin`, `end`: the text around the values; `open` and `close` are its outermost tags, and
    `name` matches what the block has of it before the values. `key`, `value_end`: the text before
    and after a value. Line breaks at a value's ends belong to the format if `key` ends with one.
    """

    family: str
    open: str
    close: str
    begin: str
    key: str
    value_end: str
    end: str
    name: re.Pattern[str]
    before: str = ""
    after: str = ""

    @functools.cached_property
    def key_open(self) -> str:
        """Return the text that begins a key."""
        return self.key.partition("{key}")[0]

    @functools.cached_property
    def parts(self) -> list[str]:
        """Return the tags between a key and its value; whitespace may stand between them."""
        return self.key.partition("{key}")[2].split()

    @functools.cached_property
    def tail(self) -> str:
        """Return the text of a block after its values."""
        return self.end.removesuffix(self.close).strip()

    @functools.cached_property
    def trims(self) -> bool:
        """Return whether line breaks at a value's ends belong to the format."""
        return self.key.endswith(_BREAK)

    def refused(self, what: str) -> ValueError:
        """Return the error for something that the format cannot express."""
        return ValueError(
            f"{what} cannot be forced in this model's format of calls ({self.family}); allowed: "
            "parameters of plain types, enums, and JSON where no string is allowed"
        )

    def frame(self) -> Frame:
        """Return the frame of these calls."""
        quote = self.parts[-1] if len(self.parts) > 1 else self.key_open
        return Frame(
            {self.open: self.close},
            quote=quote,
            unquote=self.value_end,
            before=self.before,
            after=self.after,
        )

    def read(self, block: str, tools: Tools) -> list[ToolCall]:
        """Return the call in a block: its values as JSON, typed by the tool's schema."""
        body = block.strip()
        name = self.name.match(body)
        called = name[1].strip() if name else ""
        values = self._values(body, name.end()) if name and called else None
        if values is None:
            found = name or self.name.search(body)
            return [ToolCall(found[1].strip() if found else "", body, malformed=True)]
        properties = properties_of(tools, called)
        pairs = [
            f"{json.dumps(key, ensure_ascii=False)}: {value_json(value, properties.get(key))}"
            for key, value in values.items()
        ]
        return [ToolCall(called, "{" + ", ".join(pairs) + "}")]

    def _values(self, text: str, at: int) -> dict[str, str] | None:
        """Return the parameters of a function by name; None if the text is malformed."""
        values: dict[str, str] = {}
        at = _skip(text, at)
        while text.startswith(self.key_open, at):
            key_start = at + len(self.key_open)
            key_end = text.find(self.parts[0], key_start)
            key = text[key_start:key_end].strip()
            start = self._value_start(text, key_end)
            end = text.find(self.value_end, start)
            if key_end < 0 or start < 0 or end < 0 or not key or "\n" in key:
                return None
            value = text[start:end]
            values[key] = value.removeprefix("\n").removesuffix("\n") if self.trims else value
            at = _skip(text, end + len(self.value_end))
        return values if text[at:] == self.tail else None

    def _value_start(self, text: str, at: int) -> int:
        for part in self.parts:
            at = _skip(text, at)
            if at < 0 or not text.startswith(part, at):
                return -1
            at += len(part)
        return at


def call_grammar(tags: Tags, lark: GrammarText, name: str, parameters: Mapping[str, Any]) -> str:
    """Return the expression of a call of one function, in `lark`: its parameters in the declared
    order, where those that are not required may be left out.

    Raises:
        ValueError: the format cannot express the name, or a constraint on a value.
    """
    if name != name.strip() or not name or set('<>"\n') & set(name):
        raise tags.refused(f"a function named {name!r}")
    if unsupported := sorted(parameters.keys() - _FRAME - NOTES):
        raise tags.refused(f"{unsupported[0]!r} in the parameters of {name!r}")
    required = listed(parameters, "required")
    properties = parameters.get("properties") or {}
    if not isinstance(properties, dict) or not all(isinstance(key, str) for key in required):
        raise tags.refused(f"parameters of {name!r} that are not named")
    parts = [lark.exactly(tags.begin.replace("{name}", name))]
    for key in dict.fromkeys([*properties, *required]):
        part = _parameter(tags, lark, key, properties.get(key, {}), parameters)
        parts.append(part if key in required else f"({part})?")
    return " ".join([*parts, lark.exactly(tags.end)])


def _parameter(
    tags: Tags, lark: GrammarText, key: str, schema: Any, parameters: Mapping[str, Any]
) -> str:
    if key != key.strip() or not key or set('<>"\n') & set(key):
        raise tags.refused(f"a parameter named {key!r}")
    value = _value(tags, lark, key, schema if isinstance(schema, dict) else {}, parameters)
    return f"{lark.exactly(tags.key.replace('{key}', key))} {value}"


def _value(
    tags: Tags,
    lark: GrammarText,
    key: str,
    schema: Mapping[str, Any],
    parameters: Mapping[str, Any],
) -> str:
    """Return the expression of a parameter's value and of the tag that ends it."""
    tail = lark.exactly(f"{_BREAK if tags.trims else ''}{tags.value_end}{_BREAK}")
    if "enum" in schema or "const" in schema:
        values = listed(schema, "enum") if "enum" in schema else [schema["const"]]
        if not values:
            raise tags.refused(f"no value of {key!r}")
        choices = [lark.exactly(_choice(tags, key, value, schema)) for value in values]
        return f"{lark.any_of(choices)} {tail}"
    types = set(types_of(schema))
    if "$ref" in schema or any("$ref" in branch for branch in _branches(schema)):
        raise tags.refused(f"a $ref as the schema of {key!r}")
    if types and "string" not in types:
        defs = {name: parameters[name] for name in ("$defs", "definitions") if name in parameters}
        return f"{lark.json({**defs, **schema})} {tail}"
    return _text(tags, lark, key, schema)


def _text(tags: Tags, lark: GrammarText, key: str, schema: Mapping[str, Any]) -> str:
    """Return the expression of any text, if the schema accepts every type that such a text may
    have."""
    for branch in [schema, *_branches(schema)]:
        if unsupported := sorted(branch.keys() - NOTES - {"type", "nullable", "anyOf", "oneOf"}):
            raise tags.refused(
                f"{unsupported[0]!r} in the schema of {key!r}, which may be a string"
            )
        if not set(types_of(branch)) <= _PLAIN:
            raise tags.refused(f"{key!r}, which may be a string or an object or array")
    # the model writes the line break before the close tag; it is not part of the value
    return f"{lark.text_to(tags.value_end, tags.open, tags.close)} {lark.exactly(_BREAK)}"


def _branches(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    either = [*listed(schema, "anyOf"), *listed(schema, "oneOf")]
    direct = [branch for branch in either if isinstance(branch, dict)]
    return [one for branch in direct for one in [branch, *_branches(branch)]]


def _choice(tags: Tags, key: str, value: Any, schema: Mapping[str, Any]) -> str:
    """Return the text of one value of an enum."""
    text = value if isinstance(value, str) else json.dumps(value)
    back = json.loads(value_json(text, schema))
    tagged = tags.value_end in text or tags.open in text
    if back != value or type(back) is not type(value) or tagged:
        raise tags.refused(f"the value {value!r} of {key!r}")
    return text


_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_BOOLEANS = {"true": "true", "1": "true", "false": "false", "0": "false"}


def properties_of(tools: Tools, name: str) -> Mapping[str, Any]:
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
    if (types & {"object", "array"} or "string" not in types) and is_json(plain):
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


def is_json(text: str) -> bool:
    """Return whether a text is JSON, without NaN and infinities."""
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


_SPACE = re.compile(r"\s*")


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at
