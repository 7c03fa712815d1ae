"""Tool calls out of the model's text, as it streams in (the hermes format).

    Let me see. <tool_call>
    {"name": "calculator", "arguments": {"expression": "3*4"}}
    </tool_call>

Every closed block becomes a tool call, whatever is in it: a malformed one reaches the
environment, which answers with an error the model can learn from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it: `arguments` is its own text, byte for byte.

    When `malformed` (no JSON object with a name and an object of arguments), `arguments` is the
    whole block and `name` what could be found of it, possibly "".
    """

    name: str
    arguments: str
    malformed: bool = False


Event = str | ToolCall
"""A piece of content, or a call whose block has closed."""


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw


_decoder = msgspec.json.Decoder(_Call)


def parse_call(block: str) -> ToolCall:
    """The call inside one block."""
    try:
        call = _decoder.decode(block)
        arguments = bytes(call.arguments).decode()
        if arguments.startswith("{"):
            return ToolCall(call.name, arguments)
    except (msgspec.DecodeError, UnicodeError):  # malformed: told apart just below
        pass
    found = _NAME.search(block)
    return ToolCall(found[1] if found else "", block.strip(), malformed=True)


class TextParser:
    """Content only: for requests without tools."""

    def feed(self, text: str) -> list[Event]:
        """What is certain after `text`."""
        return [text] if text else []

    def finish(self) -> list[Event]:
        """What is left when no more text comes."""
        return []


class HermesParser(TextParser):
    """Content and calls. Text that may yet turn out to begin a block is held back.

    Whitespace next to a block belongs to the format, not to the content. A block that never
    closes is content.
    """

    def __init__(self) -> None:
        self._held = ""
        self._gap = ""  # whitespace before the open block: content after all if it never closes
        self._inside = False
        self._after = False  # nothing but whitespace since the last block

    def feed(self, text: str) -> list[Event]:
        self._held += text
        events: list[Event] = []
        while (event := self._next()) is not None:
            if event != "":
                events.append(event)
        return events

    def finish(self) -> list[Event]:
        rest = self._gap + _OPEN + self._held if self._inside else self._held
        self._held, self._inside = "", False
        return [] if self._after and not rest.strip() else [rest] if rest else []

    def _next(self) -> Event | None:
        if self._inside:
            block, closed, rest = self._held.partition(_CLOSE)
            if not closed:
                return None
            self._held, self._inside, self._after = rest, False, True
            return parse_call(block)
        if self._after:
            self._held = self._held.lstrip()
        before, opened, rest = self._held.partition(_OPEN)
        if opened:
            shown = before.rstrip()
            self._after = False
            self._held, self._gap, self._inside = rest, before[len(shown) :], True
            return shown
        certain = _certain(before)
        self._held = before[certain:]
        self._after = self._after and not certain
        return before[:certain] or None


def _certain(text: str) -> int:
    """Characters of `text` that are content whatever follows."""
    end = len(text)
    for length in range(min(len(_OPEN) - 1, end), 0, -1):
        if _OPEN.startswith(text[end - length :]):
            end -= length
            break
    return len(text[:end].rstrip())
