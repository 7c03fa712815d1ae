"""Assistant messages as broken as models and servers make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentgym_rl.env import Message, ToolSpec

from .speech import calling, names_of, saying

MEGABYTE = 1_000_000


def malformed(tools: Sequence[ToolSpec]) -> dict[str, Message]:
    """Broken messages, by what is wrong; some call the tools there are."""
    name = next(iter(names_of(tools)), "tool")
    return {**_contents(), **_calls(name), **_arguments(name)}


def _contents() -> dict[str, Message]:
    return {
        "no content": {"role": "assistant"},
        "content is null": saying(None),
        "empty": saying(""),
        "text parts": saying([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]),
        "broken parts": saying([1, None, "text", {"type": "text"}, {"text": 5}]),
        "content is a number": saying(5),
        "content is a table": saying({"text": "hello"}),
        "1 MB of text": saying("x" * MEGABYTE),
        "1 MB of braces": saying(r"\boxed{" * (MEGABYTE // 7)),
        "1 MB of fences": saying("```python\n" * (MEGABYTE // 10)),
        "NULs": saying("\x00answer\x00"),
        "lone surrogates": saying("\ud800 and \udfff"),
        "control characters": saying("\x1b[2J\r\n\x08\u202e\ufeff"),
        "digits of other scripts": saying("\u0663\u0664 \u00b2 \u2167 \u0f33"),
    }


def _calls(name: str) -> dict[str, Message]:
    def with_calls(calls: Any) -> Message:
        return {"role": "assistant", "content": None, "tool_calls": calls}

    function = {"name": name, "arguments": "{}"}
    call = {"id": "call_0", "type": "function", "function": function}
    return {
        "tool_calls is null": with_calls(None),
        "no tool_calls": with_calls([]),
        "tool_calls is text": with_calls("call the tool"),
        "tool_calls is a table": with_calls(call),
        "tool_calls is a number": with_calls(7),
        "calls are null": with_calls([None, None]),
        "calls are empty": with_calls([{}]),
        "call without id": with_calls([{"type": "function", "function": function}]),
        "call whose id is a number": with_calls([{**call, "id": 5}]),
        "call without function": with_calls([{"id": "call_0", "type": "function"}]),
        "function is text": with_calls([{**call, "function": "add"}]),
        "function without name": with_calls([{**call, "function": {"arguments": "{}"}}]),
        "name is a number": with_calls([{**call, "function": {**function, "name": 5}}]),
        "unknown tool": calling(("no_such_tool", {})),
        "private name": calling(("__init__", {})),
        "surrogates as name": calling(("\ud800", {})),
        "100 calls": calling(*[(name, {})] * 100),
    }


def _arguments(name: str) -> dict[str, Message]:
    def given(arguments: Any) -> Message:
        function = {"name": name, "arguments": arguments}
        call = {"id": "call_0", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    return {
        "no JSON": given("{"),
        "empty arguments": given(""),
        "arguments are null": given(None),
        "arguments are a list": given("[]"),
        "arguments are a text": given('"text"'),
        "arguments not as text": given({"x": 1}),
        "unknown arguments": given('{"no_such_argument": 1}'),
        "NaN": given('{"x": NaN, "y": Infinity}'),
        "very deep": given("[" * 100_000),
        "1 MB of arguments": given('{"x": "' + "y" * MEGABYTE + '"}'),
        "surrogates": given('{"x": "\ud800", "y": "\\ud800"}'),
        "huge number": given('{"x": ' + "9" * 5000 + "}"),
    }
