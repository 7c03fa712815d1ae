"""The interface of all parsers, the events that make up a reply, and the parser of calls in blocks.

A block, <tool_call> … </tool_call>, may stand anywhere in content.
"""

from __future__ import annotations

import re
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


def tag_start(text: str, tag: str, start: int = 0) -> int:
    """Return the index where the end of `text`, at or after `start`, may begin `tag`; else the
    length of `text`. The first character of `tag` must not occur in it again."""
    at = text.rfind(tag[0], max(start, len(text) - len(tag) + 1))
    return at if at >= 0 and tag.startswith(text[at:]) else len(text)


OPEN, CLOSE = "<tool_call>", "</tool_call>"
END = rf"(?P<end>{CLOSE})"
_FIRST_END = re.compile(END)
_NOT_SPACE = re.compile(r"\S")


class BlockParser(Parser):
    """A parser of content and calls. Text that may begin a block is held back.

    Whitespace next to a block belongs to the format, not to the content. Every closed block is a
    call, whatever its content; a block that never closes is content.

    A close tag inside a quoted value is part of the value. Only later text decides: `unquote`
    confirms that the tag was in the value. `broken` (text that no quoted value holds) or the end of
    the reply means that the tag had ended the block.
    """

    begins = OPEN
    unquoted: ClassVar[re.Pattern[str]]
    """The marks outside quoted values; groups: end, quote, broken (quotes have no meaning)."""
    quoted: ClassVar[re.Pattern[str]]
    """The marks inside quoted values; groups: end, unquote, skip, broken. No mark is longer than
    CLOSE, and no mark begins inside an unfinished other mark."""

    def __init__(self) -> None:
        self._text = ""  # undecided text; between feeds, shorter than a tag
        self._at = 0
        self._gap: list[str] = []  # whitespace that is content only if content follows
        self._after = False  # only whitespace since the last block
        self._inside = False
        self._block: list[str] = []  # the part of the open block that has left _text
        self._size = 0  # the number of characters in _block
        self._start = 0  # the start in _text of the rest of the block
        self._marks = self.unquoted
        self._doubtful: int | None = None  # size of the block if the first quoted tag ends it

    @abstractmethod
    def read(self, block: str) -> ToolCall:
        """Parse the call inside one block."""

    def feed(self, text: str) -> list[Event]:
        self._text += text
        events = self._run()
        if self._inside:
            self._block.append(self._text[self._start : self._at])
            self._size += self._at - self._start
            self._start = 0
        self._text, self._at = self._text[self._at :], 0
        return events

    def finish(self) -> list[Event]:
        events: list[Event] = []
        while self._inside and self._doubtful is not None:
            events.append(self._end(self._doubtful))
            events += self._run()
        rest = "".join((*self._gap, OPEN, *self._block)) if self._inside else "".join(self._gap)
        rest += self._text[self._start if self._inside else self._at :]
        self._text, self._at, self._gap, self._inside = "", 0, [], False
        return [*events, rest] if rest else events

    def _run(self) -> list[Event]:
        """Parse as far as the text allows."""
        events: list[Event] = []
        while True:
            if not self._inside and not self._find_block(events):
                return events
            size = self._find_end()
            if size is None:
                return events
            events.append(self._end(size))

    def _find_block(self, events: list[Event]) -> bool:
        """Pass content on, up to the next block; return whether there is one."""
        text = self._text
        if self._after:
            found = _NOT_SPACE.search(text, self._at)
            self._at = found.start() if found else len(text)
        opened = text.find(OPEN, self._at)
        end = opened if opened >= 0 else tag_start(text, OPEN, self._at)
        piece = text[self._at : end]
        shown = piece.rstrip()
        if shown:
            events.append("".join((*self._gap, shown)))
            self._gap, self._after = [], False
        if len(shown) < len(piece):
            self._gap.append(piece[len(shown) :])
        self._at = end
        if opened < 0:
            return False
        self._at = self._start = opened + len(OPEN)
        self._inside, self._after = True, False
        self._block, self._size = [], 0
        self._marks, self._doubtful = self.unquoted, None
        return True

    def _find_end(self) -> int | None:
        """Return the size of the open block; None while it is unknown."""
        while (mark := self._marks.search(self._text, self._at)) is not None:
            self._at = mark.end()
            size = self._size + mark.start() - self._start
            if mark.lastgroup == "end":
                if self._marks is not self.quoted:
                    return size
                self._doubtful = size if self._doubtful is None else self._doubtful
            elif mark.lastgroup == "broken":
                if self._doubtful is not None:
                    return self._doubtful
                self._marks = _FIRST_END
            elif mark.lastgroup == "quote":
                self._marks = self.quoted
            elif mark.lastgroup == "unquote":
                self._marks, self._doubtful = self.unquoted, None
        self._at = max(self._at, len(self._text) - len(CLOSE) + 1)
        return None

    def _end(self, size: int) -> ToolCall:
        """Leave the block of `size` characters, and parse it."""
        if size < self._size:  # the end lies in an earlier piece
            whole = "".join((*self._block, self._text[self._start :]))
            block, self._text, self._at = whole[:size], whole[size + len(CLOSE) :], 0
        else:
            end = self._start + size - self._size
            block = "".join((*self._block, self._text[self._start : end]))
            self._at = end + len(CLOSE)
        self._inside, self._after, self._gap, self._doubtful = False, True, [], None
        return self.read(block)
