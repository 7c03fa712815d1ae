"""The interface of all parsers, the events that make up a reply, and the parser of calls in blocks.

A block, <tool_call> … </tool_call>, may stand anywhere in content. A `Frame` describes the blocks
of a family: their tags, and the quotes inside which a closing tag is text.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Tools = Sequence[Mapping[str, Any]]
"""The tools of a request, in OpenAI's format."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it: JSON `arguments` are its own text, byte for byte.

    A `malformed` call is closed, but has no name or no object of arguments. Then `arguments` is the
    complete text of the call, and `name` the name if one was found, else "". `id`: the id that the
    model wrote, in formats that have ids.
    """

    name: str
    arguments: str
    malformed: bool = False
    id: str = ""


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

    begins: Sequence[str] = ()
    """The texts that begin a call anywhere; empty if only the position can mark a call."""

    @abstractmethod
    def feed(self, text: str) -> list[Event]:
        """Return the events that are certain after `text`."""

    @abstractmethod
    def finish(self, *, ended: bool = False) -> list[Event]:
        """Return the remaining events at the end of the text. `ended`: the model ended its turn; in
        formats without a closing tag this closes a call."""


ParserFactory = Callable[[Tools | None, str], Parser]
"""A function that makes the parser of one reply from the tools (None if calls are not to be read)
and the end of the prompt as text. `PROMPT_END_TOKENS` tokens of the prompt are enough."""
PROMPT_END_TOKENS = 32


class TextParser(Parser):
    """A parser that returns content only: for requests without tools."""

    def feed(self, text: str) -> list[Event]:
        return [text] if text else []

    def finish(self, *, ended: bool = False) -> list[Event]:
        return []


def tag_start(text: str, tag: str, start: int = 0) -> int:
    """Return the index where the end of `text`, at or after `start`, may begin `tag`; else the
    length of `text`. The first character of `tag` must not occur in it again."""
    at = text.rfind(tag[0], max(start, len(text) - len(tag) + 1))
    return at if at >= 0 and tag.startswith(text[at:]) else len(text)


def any_start(text: str, tags: Sequence[str], start: int = 0) -> int:
    """Return `tag_start` of the first of several tags."""
    end = len(text)
    for tag in tags:
        end = min(end, tag_start(text, tag, start))
    return end


def either(tags: Sequence[str]) -> str:
    """Return a pattern for one of these texts."""
    return "|".join(map(re.escape, tags)) or r"(?!)"


class Frame:
    """The text around a family's calls.

    `pairs`: the tags that open a block, and the tag that closes it; "" if the block ends with the
    JSON value that it holds. (The value may have begun in an opening tag with a bracket.) `quote`,
    `unquote`: the marks of a value in which a closing tag is text: JSON strings, or tags; "" if
    there is none. `before`, `after`: the tags around several blocks; they belong to the format only
    next to a block. `marks`: tags inside a block whose brackets do not count.
    """

    def __init__(
        self,
        pairs: Mapping[str, str],
        *,
        quote: str = '"',
        unquote: str = '"',
        before: str = "",
        after: str = "",
        marks: Sequence[str] = (),
    ) -> None:
        self.pairs = pairs
        self.begins = tuple(filter(None, (before, *pairs)))
        self.tags = tuple(filter(None, (*self.begins, after)))
        self.seek = re.compile(either(self.tags))
        self.before = before
        self.after = after
        every = [*self.tags, *pairs.values(), *marks, quote, unquote]
        self.hold = max(map(len, every)) - 1
        """The number of characters that an unfinished mark may have."""
        opens = list(pairs)
        self.rules = {
            open: _closed(close, quote, unquote, opens) if close else _whole(opens, marks)
            for open, close in pairs.items()
        }


@dataclass(frozen=True)
class _Rules:
    """The marks inside a block. Groups outside quotes: end, quote, broken (quotes have no meaning),
    up, down (brackets), next (another block begins); inside: end, unquote, skip, broken. No mark
    begins inside an unfinished other mark."""

    unquoted: re.Pattern[str]
    quoted: re.Pattern[str]
    plain: re.Pattern[str]
    """The marks where quotes have no meaning."""


def _closed(close: str, quote: str, unquote: str, opens: Sequence[str]) -> _Rules:
    """Return the rules of blocks that a tag ends. A line break or another control character inside
    quotes means that the text is not JSON, as a backslash does outside of them; a further block
    inside a tagged value means that the value never closed."""
    end = rf"(?P<end>{re.escape(close)})"
    start, stop = either([quote] if quote else []), either([unquote] if unquote else [])
    if quote == '"':
        outside, inside = r"|(?P<broken>\\)", r"|(?P<skip>\\.)|(?P<broken>[\x00-\x1f])"
    else:
        outside, inside = "", rf"|(?P<broken>{either(opens)})"
    return _Rules(
        re.compile(rf"{end}|(?P<quote>{start}){outside}"),
        re.compile(rf"{end}|(?P<unquote>{stop}){inside}", re.DOTALL),
        re.compile(end),
    )


def _whole(opens: Sequence[str], marks: Sequence[str]) -> _Rules:
    """Return the rules of blocks that end with a JSON value."""
    # a bracket that may begin a tag counts only if its next character rules that out
    first = "".join(sorted({mark[1] for mark in (*opens, *marks) if mark[0] == "["}))
    square = rf"\[(?=[^{first}])" if first else r"\["
    unquoted = re.compile(
        rf'(?P<quote>")|(?P<next>{either(opens)})|(?P<skip>{either(marks)})'
        rf"|(?P<up>\{{|{square})|(?P<down>[\]}}])"
    )
    return _Rules(unquoted, re.compile(r'(?P<unquote>")|(?P<skip>\\.)', re.DOTALL), unquoted)


_NOT_SPACE = re.compile(r"\S")
_CLOSERS = {"[": "]", "{": "}"}
Read = Callable[[str, Tools], list[ToolCall]]
"""A function that returns the calls in one block."""


class BlockParser(Parser):
    """A parser of content and calls. Text that may begin a block is held back.

    Whitespace next to a block belongs to the format, not to the content. Every closed block is a
    call, whatever its content; a block that never closes is content.

    A close tag inside a quoted value is part of the value. Only later text decides: `unquote`
    confirms that the tag was in the value. `broken` (text that no quoted value holds) or the end of
    the reply means that the tag had ended the block.
    """

    def __init__(self, frame: Frame, read: Read, tools: Tools = ()) -> None:
        self.begins = frame.begins
        self._frame = frame
        self._read = read
        self._tools = tools
        self._text = ""  # undecided text; between feeds, shorter than a tag
        self._at = 0
        self._gap: list[str] = []  # text that is content only if content follows
        self._after = False  # only whitespace since the last block
        self._open = ""  # the tag of the open block, if there is one
        self._head = ""  # the part of that tag that is not part of the block
        self._block: list[str] = []  # the part of the open block that has left _text
        self._size = 0  # the number of characters in _block
        self._start = 0  # the start in _text of the rest of the block
        self._rules: _Rules
        self._marks: re.Pattern[str]
        self._depth = 0  # open brackets of the kind that opened first
        self._pair = "[]"  # that kind
        self._doubtful: int | None = None  # size of the block if the first quoted tag ends it

    def feed(self, text: str) -> list[Event]:
        self._text += text
        events = self._run()
        if self._open:
            self._block.append(self._text[self._start : self._at])
            self._size += self._at - self._start
            self._start = 0
        self._text, self._at = self._text[self._at :], 0
        return events

    def finish(self, *, ended: bool = False) -> list[Event]:
        events: list[Event] = []
        while self._open and self._doubtful is not None:
            events += self._end(self._doubtful)
            events += self._run()
        if self._open and ended and self._depth:  # brackets are counted only without a closing tag
            events += self._end(self._size + len(self._text) - self._start)
        block = (self._head, *self._block) if self._open else ()
        rest = "".join((*self._gap, *block, self._text[self._start if self._open else self._at :]))
        if self._after and self._frame.after.startswith(rest):
            rest = ""  # a part of the tag after calls
        self._text, self._at, self._gap, self._open = "", 0, [], ""
        return [*events, rest] if rest else events

    def _run(self) -> list[Event]:
        """Parse as far as the text allows."""
        events: list[Event] = []
        while True:
            if not self._open and not self._find_block(events):
                return events
            size = self._find_end()
            if size is None:
                return events
            events += self._end(size)

    def _find_block(self, events: list[Event]) -> bool:
        """Pass content on, up to the next block; return whether there is one."""
        while (tag := self._next_tag(events)) is not None:
            self._at = tag.end()
            if tag[0] in self._frame.pairs:
                self._begin(tag[0])
                return True
            if tag[0] != self._frame.after or not self._after:
                self._gap.append(tag[0])
                self._after = False
        return False

    def _next_tag(self, events: list[Event]) -> re.Match[str] | None:
        text = self._text
        if self._after:
            found = _NOT_SPACE.search(text, self._at)
            self._at = found.start() if found else len(text)
        tag = self._frame.seek.search(text, self._at)
        end = tag.start() if tag else any_start(text, self._frame.tags, self._at)
        piece = text[self._at : end]
        shown = piece.rstrip()
        if shown:
            events.append("".join((*self._gap, shown)))
            self._gap, self._after = [], False
        if len(shown) < len(piece):
            self._gap.append(piece[len(shown) :])
        self._at = end
        return tag

    def _begin(self, tag: str) -> None:
        self._open, self._head, self._after = tag, tag.removesuffix("["), False
        self._depth, self._pair = len(tag) - len(self._head), "[]"
        self._block, self._size, self._start = [], 0, self._at - self._depth
        self._rules = self._frame.rules[tag]
        self._marks, self._doubtful = self._rules.unquoted, None

    def _find_end(self) -> int | None:
        """Return the size of the open block; None while it is unknown."""
        rules = self._rules
        while (mark := self._marks.search(self._text, self._at)) is not None:
            size = self._size + mark.start() - self._start
            kind = mark.lastgroup
            if kind == "next":
                return size
            self._at = mark.end()
            if kind == "end":
                if self._marks is not rules.quoted:
                    return size
                self._doubtful = size if self._doubtful is None else self._doubtful
            elif kind == "broken":
                if self._doubtful is not None:
                    return self._doubtful
                self._marks = rules.plain
            elif kind == "quote":
                self._marks = rules.quoted
            elif kind == "unquote":
                self._marks, self._doubtful = rules.unquoted, None
            elif kind == "up":
                self._pair = self._pair if self._depth else mark[0] + _CLOSERS[mark[0]]
                self._depth += mark[0] == self._pair[0]
            elif kind == "down" and self._depth:
                self._depth -= mark[0] == self._pair[1]
                if not self._depth:
                    return size + 1
        self._at = max(self._at, len(self._text) - self._frame.hold)
        return None

    def _end(self, size: int) -> list[ToolCall]:
        """Leave the block of `size` characters, and parse it."""
        close = len(self._frame.pairs[self._open])
        if size < self._size:  # the end lies in an earlier piece
            whole = "".join((*self._block, self._text[self._start :]))
            block, self._text, self._at = whole[:size], whole[size + close :], 0
        else:
            end = self._start + size - self._size
            block = "".join((*self._block, self._text[self._start : end]))
            self._at = end + close
        self._open, self._after, self._gap, self._doubtful = "", True, [], None
        return self._read(block, self._tools)
