"""The events that make up a reply, and the interface of all parsers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it: JSON `arguments` are its own text, byte for byte.

    A `malformed` call is closed, but has no name or no object of arguments. Then `arguments` is the
    complete text of the call, and `name` the name if one was found, else "".
    """

    name: str
    arguments: str
    malformed: bool = False


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the model's thoughts, which are not part of the content."""

    text: str


Event = str | Reasoning | ToolCall
"""A piece of content, a piece of reasoning, or a call that has closed."""


class Parser(ABC):
    """A parser of one reply. The events do not depend on how the text is cut into pieces.

    The time is linear in the length of any text.
    """

    begins: ClassVar[str] = ""
    """The text that begins a call anywhere; "" if only the position can mark a call."""

    @abstractmethod
    def feed(self, text: str) -> list[Event]:
        """Return the events that are certain after `text`."""

    @abstractmethod
    def finish(self) -> list[Event]:
        """Return the remaining events at the end of the text."""


class TextParser(Parser):
    """A parser that returns content only: for requests without tools."""

    def feed(self, text: str) -> list[Event]:
        return [text] if text else []

    def finish(self) -> list[Event]:
        return []


def tag_start(text: str, tag: str, start: int = 0) -> int:
    """Return the index where the end of `text`, at or after `start`, may begin `tag`; else the
    length of `text`. The first character of `tag` must not occur in it again."""
    at = text.rfind(tag[0], max(start, len(text) - len(tag) + 1))
    return at if at >= 0 and tag.startswith(text[at:]) else len(text)
