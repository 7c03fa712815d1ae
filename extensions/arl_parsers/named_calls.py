"""Calls as an array of objects, or as a name and its arguments, which are JSON.

[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]              Mistral, Granite, Phi-4
[TOOL_CALLS]f[ARGS]{"x": 1}                                     Mistral, DeepSeek, Kimi
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentgym_rl.gateway import (
    CallGrammar,
    GrammarText,
    Read,
    ToolCall,
    Tools,
    is_object,
    malformed,
    own_id,
    parse_object,
)

_FAULTS = (msgspec.DecodeError, UnicodeError, RecursionError)
_array = msgspec.json.Decoder(list[msgspec.Raw])


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
        return [ToolCall(name, text, not good, own_id(written) if has_id else "")]

    return read


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
    arguments, own = body[head.end() :], own_id((head[2] or "").strip())
    good = is_object(arguments)
    return [ToolCall(name, arguments if good else body, not good, own)]


def named_grammar(begin: str, end: str = "", *, barred: Sequence[str] = ()) -> CallGrammar:
    """Return the grammar of a call that is a name, in `begin` at the place of {name}, and its
    arguments.

    Raises:
        ValueError: (the grammar) the format cannot express a name.
    """

    def write(lark: GrammarText, name: str, parameters: Mapping[str, Any]) -> str:
        if name != name.strip() or not name or any(mark in name for mark in ("\n", *barred)):
            raise ValueError(f"a function named {name!r} cannot be forced in this model's format")
        head = lark.exactly(begin.replace("{name}", name))
        return f"{head} {lark.json(parameters)}" + (f" {lark.exactly(end)}" if end else "")

    return write
