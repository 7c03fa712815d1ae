"""What a reply is made of, and what every parser does with its text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it: JSON `arguments` are its own text, byte for byte.

    When `malformed` (it has closed, but there is no name, or no object of arguments), `arguments`
    is all that stood in the call and `name` what could be found of it, possibly "".
    """

    name: str
    arguments: str
    malformed: bool = False


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the model's thoughts, which are no part of the content."""

    text: str


Event = str | Reasoning | ToolCall
"""A piece of content, a piece of reasoning, or a call that has closed."""


class Parser(ABC):
    """Reads one reply. However its text is cut into pieces, the events add up to the same.

    The time it takes is linear in the text, whatever the text is.
    """

    begins: ClassVar[str] = ""
    """What begins a call wherever it stands; "" where only the place can tell."""

    @abstractmethod
    def feed(self, text: str) -> list[Event]:
        """What is certain after `text`."""

    @abstractmethod
    def finish(self) -> list[Event]:
        """What is left when no more text comes."""


class TextParser(Parser):
    """Content only: for requests without tools."""

    def feed(self, text: str) -> list[Event]:
        return [text] if text else []

    def finish(self) -> list[Event]:
        return []


def tag_start(text: str, tag: str, start: int = 0) -> int:
    """Where the end of `text` may begin `tag`, which has its first character only once; the
    length of `text` if nowhere at or after `start`."""
    at = text.rfind(tag[0], max(start, len(text) - len(tag) + 1))
    return at if at >= 0 and tag.startswith(text[at:]) else len(text)
