"""The program in a message: the choice among its fenced blocks, and the text of that block.

Fences are those of CommonMark: three or more backticks or tildes, also in list items and quotes
(https://spec.commonmark.org/0.31.2/#fenced-code-blocks).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_PROGRAM_CHARS = 100_000
"""The most characters of a program: longer ones are not expected, and each test would contain
them."""
MAX_BLOCKS = 1000
"""The most blocks of a message. One with more has no program, as it would take too long to read
while other episodes wait."""
MAX_FENCES = 10 * MAX_BLOCKS
"""The most fences of a message, opening or closing."""

MAX_QUOTES, MAX_ITEMS = 10, 100
"""The largest depth of quotes and of list items inside each other; deeper ones are text."""

_OPENS = re.compile(r"(?:(?P<ticks>`{3,})(?P<info>[^`]*)|(?P<tildes>~{3,})(?P<said>.*))")
_ITEM = re.compile(r"(?:[-+*]|[0-9]{1,9}[.)])(?P<gap>[ \t]+)(?=\S)")
_QUOTE = re.compile(r"[ \t]{0,3}>[ ]?")
_PYTHON = re.compile(r"[{.\s]*(?:i?python|py)[0-9.]*(?![\w.+#-])", re.IGNORECASE)
_READS = re.compile(r"\b(?:input|stdin|fileinput)\b|\bopen\(\s*(?:0|['\"]/dev/stdin)|\bos\.read\(")


class _Block(NamedTuple):
    program: str
    is_marked: bool
    """Whether the block is marked as Python; other blocks have no mark at all."""
    is_closed: bool


def last_program(text: str, entry: str | None = None) -> str | None:
    """Return the program in `text`; None if there is none.

    Candidates are blocks that are marked as Python, or not marked at all. Closed blocks come before
    one that runs to the end of the message. Then come blocks that do what the task requires: define
    the function `entry`, or read standard input if `entry` is "" (None: nothing is known). Marked
    blocks come next. The last of equal blocks wins, so output or a usage example may follow.

    Only a line feed ends a line, so that strings in a program do not change.
    """
    if text.count("```") + text.count("~~~") > MAX_FENCES:
        return None
    best: tuple[bool, bool, bool] | None = None
    found: str | None = None
    for number, block in enumerate(_blocks(text)):
        if number >= MAX_BLOCKS:
            return None
        if block is None:
            continue
        rank = (block.is_closed, _fits(block.program, entry), block.is_marked)
        if best is None or rank >= best:
            best, found = rank, block.program
    return found


def _fits(program: str, entry: str | None) -> bool:
    """Return whether `program` seems to do what the task requires, by a search of its text."""
    if not entry:
        return entry is None or _READS.search(program) is not None
    name = re.escape(entry)
    defined = (
        rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{name}\b|^{name}\b[^=\n]*=(?!=)|\bimport\b.*\b{name}\b"
    )
    return re.search(defined, program, re.MULTILINE) is not None


class _Fence(NamedTuple):
    mark: str
    info: str
    start: int
    """The index of the line after the fence."""
    quotes: int
    """The number of quotation marks (`>`) before the fence, and before each line of the block."""
    column: int
    """The column of the fence."""
    reach: int
    """The largest indentation of the closing fence."""


def _blocks(text: str) -> Iterator[_Block | None]:
    """Yield the fenced blocks of `text` in their order; None for a block that is no program."""
    fence: _Fence | None = None
    columns: list[int] = []
    lines = text.replace("\r\n", "\n").split("\n")
    for number, line in enumerate(lines):
        if fence is not None:
            bare, depth = _unquoted(line, fence.quotes)
            quote_ended = depth < fence.quotes
            if not quote_ended and not _closes(bare, fence):
                continue
            yield _block(lines[fence.start : number], fence, is_closed=True)
            fence = None
            if not quote_ended:
                continue
        bare, quotes = _unquoted(line, MAX_QUOTES)
        bare, column = _entered(bare, columns)
        if match := _OPENS.fullmatch(bare):
            item = columns[-1] if columns else 0
            reach = (item if column <= item + 3 else column) + 3
            mark, info = match["ticks"] or match["tildes"], match["info"] or match["said"] or ""
            fence = _Fence(mark, info.strip(), number + 1, quotes, column, reach)
    if fence is not None:
        yield _block(lines[fence.start :], fence, is_closed=False)


def _unquoted(line: str, most: int) -> tuple[str, int]:
    """Return `line` after its quotation marks, at most `most` of them, and their number."""
    at = depth = 0
    while depth < most and (match := _QUOTE.match(line, at)):
        at, depth = match.end(), depth + 1
    return line[at:], depth


def _entered(line: str, columns: list[int]) -> tuple[str, int]:
    """Return `line` after its indentation and the marks of list items in it, and the column.

    `columns` holds the column of the text of each open list item; it is updated.
    """
    rest = line.lstrip(" \t")
    if not rest:
        return "", 0
    column = _indent(line)
    while columns and column < columns[-1]:
        columns.pop()
    while len(columns) < MAX_ITEMS and (match := _ITEM.match(rest)):
        column += match.end()
        columns.append(column)
        rest = rest[match.end() :]
    return rest, column


def _indent(line: str) -> int:
    """Return the indentation of `line`; a tab reaches to the next multiple of four."""
    blanks = line[: len(line) - len(line.lstrip(" \t"))]
    return len(blanks.expandtabs(4))


def _closes(line: str, fence: _Fence) -> bool:
    mark = line.strip(" \t")
    is_fence = len(mark) >= len(fence.mark) and not mark.strip(fence.mark[0])
    return is_fence and _indent(line) <= fence.reach


def _block(lines: list[str], fence: _Fence, *, is_closed: bool) -> _Block | None:
    is_marked = _PYTHON.match(fence.info) is not None
    lines = _dedented([_unquoted(line, fence.quotes)[0] for line in lines], fence.column)
    program = "\n".join(lines) + ("\n" if is_closed else "")
    if not program.strip() or len(program) > MAX_PROGRAM_CHARS:
        return None
    if not is_marked and (fence.info or _OPENS.match(program.lstrip())):
        return None  # another language, or a message within the message
    return _Block(program, is_marked, is_closed)


def _dedented(lines: list[str], column: int) -> list[str]:
    """Return `lines` without the indentation of their fence, or the first line's if it is less."""
    first = next(filter(str.strip, lines), "")
    blanks = min(_indent(first), column)
    return [_without(line, blanks) for line in lines] if blanks else lines


def _without(line: str, blanks: int) -> str:
    rest = line.lstrip(" \t")
    return " " * (_indent(line) - blanks) + rest if rest else ""
