"""The text of a growing sequence of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from .chat_format import ChatFormat


class Detokenizer:
    """A decoder of a growing token sequence into pieces of text that never split a character."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._ids: list[int] = []
        self._start = 0  # the window decoded anew starts here: some decoders need left context
        self._done = 0  # the number of tokens whose text has been returned

    def feed(self, ids: Sequence[int]) -> str:
        """Return the text that is certain after `ids`."""
        self._ids += ids
        return self._more(last=False)

    def finish(self) -> str:
        """Return the rest, incomplete characters as U+FFFD."""
        return self._more(last=True)

    def _more(self, *, last: bool) -> str:
        if self._done == len(self._ids):
            return ""
        known = self._chat.text(self._ids[self._start : self._done]) if self._done else ""
        text = self._chat.text(self._ids[self._start :])
        if text.endswith("\ufffd") and not last:
            return ""
        if len(text) > len(known):
            self._start, self._done = self._done, len(self._ids)
        return text[len(known) :]
