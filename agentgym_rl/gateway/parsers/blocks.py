"""Calls in blocks: <tool_call> … </tool_call>, in the middle of content."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import ClassVar

from .events import Event, Parser, ToolCall, tag_start

OPEN, CLOSE = "<tool_call>", "</tool_call>"
END = rf"(?P<end>{CLOSE})"
_FIRST_END = re.compile(END)
_NOT_SPACE = re.compile(r"\S")


class BlockParser(Parser):
    """Content and calls. Text that may yet turn out to begin a block is held back.

    Whitespace next to a block belongs to the format, not to the content. Every closed block is a
    call, whatever is in it; a block that never closes is content.

    A close tag inside a quoted value is a part of the value. Whether it is one shows later: at
    `unquote` it was, at `broken` (what no quoted value holds) or at the end of the reply it was
    not, and the block had ended there.
    """

    begins = OPEN
    unquoted: ClassVar[re.Pattern[str]]
    """What matters outside quoted values; groups: end, quote, broken (quotes mean nothing here)."""
    quoted: ClassVar[re.Pattern[str]]
    """What matters inside them; groups: end, unquote, skip, broken. No mark is longer than CLOSE
    and none begins inside an unfinished other one."""

    def __init__(self) -> None:
        self._text = ""  # fed, and not yet decided upon; but for a feed, shorter than a tag
        self._at = 0
        self._gap: list[str] = []  # whitespace that is content only if content follows
        self._after = False  # nothing but whitespace since the last block
        self._inside = False
        self._block: list[str] = []  # of the open block, what is no longer in _text
        self._size = 0  # characters in _block
        self._start = 0  # where the rest of the block begins in _text
        self._marks = self.unquoted
        self._doubtful: int | None = None  # size of the block if the first quoted tag ends it

    @abstractmethod
    def read(self, block: str) -> ToolCall:
        """The call inside one block."""

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
        """Go on as far as the text allows."""
        events: list[Event] = []
        while True:
            if not self._inside and not self._find_block(events):
                return events
            size = self._find_end()
            if size is None:
                return events
            events.append(self._end(size))

    def _find_block(self, events: list[Event]) -> bool:
        """Pass content on, up to the next block; whether there is one."""
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
        """The size of the open block; None while it does not show."""
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
        """Leave the block, which is `size` characters long."""
        if size < self._size:  # the end lies in what was fed before
            whole = "".join((*self._block, self._text[self._start :]))
            block, self._text, self._at = whole[:size], whole[size + len(CLOSE) :], 0
        else:
            end = self._start + size - self._size
            block = "".join((*self._block, self._text[self._start : end]))
            self._at = end + len(CLOSE)
        self._inside, self._after, self._gap, self._doubtful = False, True, [], None
        return self.read(block)
