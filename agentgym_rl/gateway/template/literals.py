"""The literal special tokens in texts of users and tools: marks turn them into ordinary text.

These texts are untrusted, and a search keeps all other threads from running. So a text is searched
a piece at a time, and the time for a character does not grow with the number of special tokens:
with a thousand of them, a search for one after the other took half a minute for 4 MB of "<|<|<|".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from os.path import commonprefix

from agentgym_rl.core.chat import PIECE

BREAK = "\ue002break\ue003"
"""A mark put inside literal special tokens; the text is tokenised in pieces that end at marks."""
_BATCH = 10_000
_DEEPEST = 32
"""The number of nested groups in a pattern; Python's compiler calls itself for each."""


class Literals:
    """The special tokens of one tokenizer; earlier ones take precedence."""

    def __init__(self, tokens: Iterable[str]) -> None:
        texts = [text for text in dict.fromkeys(tokens) if text]
        self.pattern = re.compile(_any_of(_reachable(texts)) or "(?!)")
        """The pattern that matches any of them."""
        self._longest = max(map(len, texts), default=0)

    def begins(self, text: str) -> bool:
        """Return whether a text begins with a special token."""
        return bool(self.pattern.match(text))

    def broken(self, text: str) -> str:
        """Return a text with a mark inside each special token; itself if it has none."""
        cuts = [match.start() + 1 for found in self.found(text) for match in found]
        return _joined(text, cuts) if cuts else text

    def found(self, text: str) -> Iterator[Sequence[re.Match[str]]]:
        """Yield the matches of each piece of a text, those of `finditer` together."""
        start = 0
        while start < len(text):
            end = start + PIECE
            matches = list(self.pattern.finditer(text, start, end + self._longest))
            while matches and matches[-1].start() >= end:
                matches.pop()  # it may be cut off: the next piece has all of it
            yield matches
            start = max(end, matches[-1].end()) if matches else end


def _reachable(texts: Sequence[str]) -> list[str]:
    """Return the texts without those that begin with an earlier one, which matches instead. Of the
    others, the longest that matches is the earliest."""
    found = dict[str, None]()
    for text in texts:
        if not any(text[:length] in found for length in range(1, len(text))):
            found[text] = None
    return list(found)


def _any_of(texts: Sequence[str], depth: int = 0) -> str:
    """Return a pattern for the longest of some texts, whose common beginnings are read once."""
    if depth == _DEEPEST:
        return f"(?:{'|'.join(map(re.escape, sorted(texts, key=len, reverse=True)))})"
    groups: dict[str, list[str]] = {}
    for text in filter(None, texts):
        groups.setdefault(text[0], []).append(text)
    if not groups:
        return ""
    branches = list[str]()
    for group in groups.values():
        head = commonprefix(group)  # noqa: RUF071 (these are no paths)
        rest = [text[len(head) :] for text in group]
        branches.append(re.escape(head) + _any_of(rest, depth + 1))
    return f"(?:{'|'.join(branches)}){'?' if '' in texts else ''}"


def _joined(text: str, cuts: Sequence[int]) -> str:
    """Return the text with a mark at each cut; in batches, so that other threads run."""
    start, parts = 0, list[str]()
    rest = iter(cuts)
    while batch := list(islice(rest, _BATCH)):
        parts.append(BREAK.join(text[a:b] for a, b in pairwise([start, *batch])))
        start = batch[-1]
    return BREAK.join([*parts, text[start:]])
