"""Calls whose arguments are JSON: an object with the name, an array of them, or the name in front.

    <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>     Hermes, Qwen
    [TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]              Mistral, Granite, Phi-4
    [TOOL_CALLS]f[ARGS]{"x": 1}                                     Mistral, DeepSeek, Kimi

Arguments are the model's own text, byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .lark import CallGrammar, Lark
from .parser import Read, ToolCall, Tools

NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')
_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_NOTHING = msgspec.Raw()
_FAULTS = (msgspec.DecodeError, UnicodeError, RecursionError)


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = _NOTHING
    parameters: msgspec.Raw = _NOTHING
    id: Any = None


_decoder = msgspec.json.Decoder(_Call)
_array = msgspec.json.Decoder(list[msgspec.Raw])
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
    own = _own(call.id) if has_id else ""
    return ToolCall(call.name, arguments, id=own) if arguments.startswith("{") else None


def _own(id: Any) -> str:
    """Return an id that the model wrote; "" if it is not valid as one."""
    return id if isinstance(id, str) and _ID.fullmatch(id) else ""


def malformed(text: str) -> ToolCall:
    """Return a malformed call with all of its text, and the name that the text gives, if any."""
    found = NAME.search(text)
    return ToolCall(found[1] if found else "", text.strip(), malformed=True)


def read_call(block: str, tools: Tools = ()) -> list[ToolCall]:
    """Return the call of a block that is an object with "name" and "arguments"."""
    return [parse_object(block, keys=1) or malformed(block)]


def read_array(block: str, tools: Tools = (), *, has_id: bool = False) -> list[ToolCall]:
    """Return the calls of a block that is an array of objects, or one object."""
    try:
        items = [bytes(item).decode() for item in _array.decode(block)]
    except _FAULTS:
        items = [block]
    return [parse_object(item, has_id=has_id) or malformed(item) for item in items]


def named(between: str, *, prefix: str = "", tail: str = "", has_id: bool = False) -> Read:
    """Return a reader of blocks that are a name, the text `between`, and the arguments.

    `prefix`: text before the name, if it is there; `tail`: text after the arguments; `has_id`: an
    id stands for the name, which is the prefix, the name, a colon and a number.
    """

    def read(block: str, tools: Tools = ()) -> list[ToolCall]:
        head, found, rest = block.partition(between)
        written = head.strip() if found and "\n" not in head.strip() else ""
        name = written.removeprefix(prefix)
        if has_id and name.rpartition(":")[2].isdecimal():
            name = name.rpartition(":")[0]
        arguments = rest.strip().removesuffix(tail).rstrip()
        good = bool(name) and is_object(arguments)
        text = arguments if good else block.strip()
        return [ToolCall(name, text, not good, _own(written) if has_id else "")]

    return read


def is_object(text: str) -> bool:
    """Return whether a text is one JSON object."""
    try:
        return text.startswith("{") and bool(_raw.decode(text))
    except _FAULTS:
        return False


_MISTRAL = re.compile(
    r"([^\[{\n]*+)(?:\[CALL_ID\]([^\[{\n]*+))?(?:\[ARGS\])?\s*+(?=\{)",
)


def read_mistral(block: str, tools: Tools = ()) -> list[ToolCall]:
    """Return the calls of a Mistral block: an array of objects, or a name and its arguments with a
    tag between them, or, in some versions, a tag and an id, or nothing."""
    body = block.strip()
    head = _MISTRAL.match(body)
    if not head or not (name := head[1].strip()):
        return read_array(body, has_id=True)
    arguments, own = body[head.end() :], _own((head[2] or "").strip())
    good = is_object(arguments)
    return [ToolCall(name, arguments if good else body, not good, own)]


def object_grammar(key: str, head: str = "", tail: str = "") -> CallGrammar:
    """Return the grammar of a call that is an object with its arguments under `key`."""

    def write(lark: Lark, name: str, parameters: Mapping[str, Any]) -> str:
        begin = f'{head}{{"name": {json.dumps(name, ensure_ascii=False)}, "{key}": '
        return f"{lark.exactly(begin)} {lark.json(parameters)} {lark.exactly('}' + tail)}"

    return write


def named_grammar(begin: str, end: str = "", *, barred: Sequence[str] = ()) -> CallGrammar:
    """Return the grammar of a call that is a name, in `begin` at the place of {name}, and its
    arguments.

    Raises:
        ValueError: (the grammar) the format cannot express a name.
    """

    def write(lark: Lark, name: str, parameters: Mapping[str, Any]) -> str:
        if name != name.strip() or not name or any(mark in name for mark in ("\n", *barred)):
            raise ValueError(f"a function named {name!r} cannot be forced in this model's format")
        head = lark.exactly(begin.replace("{name}", name))
        return f"{head} {lark.json(parameters)}" + (f" {lark.exactly(end)}" if end else "")

    return write
