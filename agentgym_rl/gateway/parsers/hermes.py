"""The format of Hermes and Qwen3: a JSON object in a block.

Let me see. <tool_call>
{"name": "calculator", "arguments": {"expression": "3*4"}}
</tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from .lark import Lark
from .parser import CLOSE, END, OPEN, BlockParser, ToolCall

NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw


_decoder = msgspec.json.Decoder(_Call)
_TAIL = "}\n" + CLOSE


def parse_call(block: str) -> ToolCall:
    """Parse the call inside one block."""
    try:
        call = _decoder.decode(block)
        arguments = bytes(call.arguments).decode()
        if arguments.startswith("{"):
            return ToolCall(call.name, arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):  # malformed, see below
        pass
    found = NAME.search(block)
    return ToolCall(found[1] if found else "", block.strip(), malformed=True)


class HermesParser(BlockParser):
    """A parser of content and calls. JSON strings may hold a close tag; a line break or another
    control character inside quotes means that the text is not JSON."""

    unquoted = re.compile(END + r'|(?P<quote>")|(?P<broken>\\)')
    quoted = re.compile(END + r'|(?P<unquote>")|(?P<skip>\\.)|(?P<broken>[\x00-\x1f])', re.DOTALL)

    def read(self, block: str) -> ToolCall:
        return parse_call(block)


def call_grammar(lark: Lark, name: str, parameters: Mapping[str, Any]) -> str:
    """Return the expression of a call of one function, in `lark`."""
    head = f'{OPEN}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
    return f"{lark.exactly(head)} {lark.json(parameters)} {lark.exactly(_TAIL)}"
