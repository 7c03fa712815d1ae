"""Calls that are JSON objects, and the format of Hermes, Qwen and the bundled models:

    <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>

Arguments are the model's own text, byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from .formats import CallGrammar, Calls, GrammarText, block_format
from .parser import Frame, ToolCall, Tools

_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')
_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_NOTHING = msgspec.Raw()
_FAULTS = (msgspec.DecodeError, UnicodeError, RecursionError)


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = _NOTHING
    parameters: msgspec.Raw = _NOTHING
    id: Any = None


_decoder = msgspec.json.Decoder(_Call)
_raw = msgspec.json.Decoder(msgspec.Raw)


def parse_object(text: str, *, keys: int = 2, has_id: bool = False) -> ToolCall | None:
    """Return the call in a JSON object; None if it is malformed. `keys`: 1 if the arguments must be
    called "arguments", 2 if "parameters" will do; `has_id`: whether "id" counts."""
    try:
        call = _decoder.decode(text)
        found = call.arguments or (call.parameters if keys > 1 else b"")
        arguments = bytes(found).decode()
    except _FAULTS:
        return None
    own = own_id(call.id) if has_id else ""
    return ToolCall(call.name, arguments, id=own) if arguments.startswith("{") else None


def own_id(id: Any) -> str:
    """Return an id that the model wrote; "" if it is not valid as one."""
    return id if isinstance(id, str) and _ID.fullmatch(id) else ""


def malformed(text: str) -> ToolCall:
    """Return a malformed call with all of its text, and the name that the text gives, if any."""
    found = _NAME.search(text)
    return ToolCall(found[1] if found else "", text.strip(), malformed=True)


def read_call(block: str, tools: Tools = ()) -> list[ToolCall]:
    """Return the call of a block that is an object with "name" and "arguments"."""
    return [parse_object(block, keys=1) or malformed(block)]


def is_object(text: str) -> bool:
    """Return whether a text is one JSON object."""
    try:
        return text.startswith("{") and bool(_raw.decode(text))
    except _FAULTS:
        return False


def object_grammar(key: str, head: str = "", tail: str = "") -> CallGrammar:
    """Return the grammar of a call that is an object with its arguments under `key`."""

    def write(text: GrammarText, name: str, parameters: Mapping[str, Any]) -> str:
        begin = f'{head}{{"name": {json.dumps(name, ensure_ascii=False)}, "{key}": '
        return f"{text.exactly(begin)} {text.json(parameters)} {text.exactly('}' + tail)}"

    return write


HERMES = block_format(
    Frame({"<tool_call>": "</tool_call>"}),
    read_call,
    grammar=Calls(object_grammar("arguments", "<tool_call>\n", "\n</tool_call>")),
    order=50,
)
