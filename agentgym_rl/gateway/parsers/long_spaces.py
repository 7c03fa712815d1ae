"""Very long whitespace, out of the way of patterns that search it in quadratic time."""

from __future__ import annotations

import re

_LONGEST = 128
_MARKS = range(0xF0000, 0xFFFFE)
_MARK = f"[{chr(_MARKS[0])}-{chr(_MARKS[-1])}]"
_SUSPECT = re.compile(rf"\s{{{_LONGEST + 1}}}|{_MARK}")
_PIECE = re.compile(rf"\s+|{_MARK}|\S")
_ANY_MARK = re.compile(_MARK)


class LongSpaces:
    """Hides what is beyond 128 whitespace characters in a row behind single private characters.

    A model that has lost its way may well write thousands of line breaks; a pattern that begins
    with `\\s*` takes minutes to find that nothing follows them.
    """

    def __init__(self) -> None:
        self._hidden: dict[str, str] = {}
        self._run = 0  # whitespace characters at the end of the text so far

    def hide(self, text: str) -> str:
        """The next piece of a text, with marks in it."""
        lead, tail = len(text) - len(text.lstrip()), len(text) - len(text.rstrip())
        if self._run + lead <= _LONGEST and not _SUSPECT.search(text):
            self._run = self._run + tail if tail == len(text) else tail
            return text
        return _PIECE.sub(self._hide, text)

    def show(self, text: str) -> str:
        """A text with marks in it, as it was."""
        return _ANY_MARK.sub(lambda mark: self._hidden.get(mark[0], mark[0]), text)

    def _hide(self, piece: re.Match[str]) -> str:
        text = piece[0]
        if text.isspace():
            keep = max(_LONGEST - self._run, 0)
            self._run += len(text)
            return text[:keep] + (self._mark(text[keep:]) if len(text) > keep else "")
        self._run = 0
        return self._mark(text) if ord(text) in _MARKS else text

    def _mark(self, text: str) -> str:
        mark = chr(_MARKS[len(self._hidden) % len(_MARKS)])
        self._hidden[mark] = text
        return mark
