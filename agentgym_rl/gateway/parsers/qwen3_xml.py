"""Qwen3-Coder and Qwen3.5: tags in a block, and values without quotes or types.

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
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .blocks import END, BlockParser
from .events import ToolCall
from .schemas import properties_of, value_json

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
