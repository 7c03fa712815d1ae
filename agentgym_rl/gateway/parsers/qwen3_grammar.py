"""Grammars of calls as `qwen3_xml` reads them: tags, and values without quotes.

A value has no type of its own: it becomes what the schema and the text make of it
(`schemas.value_json`). So the grammar of a value is what reads back as valid: text where the
schema takes any string, the choices of an enum, JSON where it takes no strings. What can be held
to neither is refused. (Strings inside JSON may spell a close tag all the same: no grammar can bar
it there, and the call is then malformed, as one that a free model writes.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .blocks import CLOSE, OPEN
from .lark import NOTES, Lark
from .qwen3_xml import listed, types_of, value_json

_FRAME = frozenset(
    {"type", "properties", "required", "additionalProperties", "$schema", "$defs", "definitions"}
)
_PLAIN = frozenset({"string", "integer", "number", "boolean", "null"})
_BREAK = "\n"
_VALUE_END = "</parameter>"
_TAIL = f"{_BREAK}{_VALUE_END}{_BREAK}"


def call_grammar(lark: Lark, name: str, parameters: Mapping[str, Any]) -> str:
    """A call of one function, as an expression of `lark`: its parameters in the order in which
    they are declared, those that are not required possibly left out.

    Raises:
        ValueError: the format has no words for the name, or for what a value must be.
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
    """What may stand between the tags of a parameter, and the tag that ends it."""
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
    """Any text, where whatever type it is taken for is one that the schema takes as it is."""
    for branch in [schema, *_branches(schema)]:
        if odd := sorted(branch.keys() - NOTES - {"type", "nullable", "anyOf", "oneOf"}):
            raise _refused(f"{odd[0]!r} in the schema of {key!r}, which may be a string")
        if not set(types_of(branch)) <= _PLAIN:
            raise _refused(f"{key!r}, which may be a string or an object or array")
    # the line break before the close is the model's to write; it is no part of the value
    return f"{lark.text_to(_VALUE_END, OPEN, CLOSE)} {lark.exactly(_BREAK)}"


def _branches(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    either = [*listed(schema, "anyOf"), *listed(schema, "oneOf")]
    direct = [branch for branch in either if isinstance(branch, dict)]
    return [one for branch in direct for one in [branch, *_branches(branch)]]


def _choice(key: str, value: Any, schema: Mapping[str, Any]) -> str:
    """The text of one value of an enum."""
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
