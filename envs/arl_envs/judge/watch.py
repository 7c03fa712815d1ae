"""The warnings, each logged once, about faults that rewards do not show: a judge that gives every
text the same score, texts that prevent a verdict, and a judge whose cost grows."""

from __future__ import annotations

import logging
from collections import deque

log = logging.getLogger(__name__)

_ENOUGH = 64
"""The number of verdicts after which a judge without any difference is suspicious, and over which
costs are compared."""
_GROWTH = 2.0
_OFTEN = 0.2


class Watch:
    """A watch over the verdicts of one judge, by criterion, and over its tokens and its cost."""

    def __init__(self, judge: str, *, warn_usd: float) -> None:
        self._judge = judge
        self._warn_usd = warn_usd
        self._usd = 0.0
        self._same: dict[str, tuple[int, int]] = {}
        """The only score of a criterion so far and its count; a count of -1: there were others."""
        self._first = 0
        """The tokens of the first calls."""
        self._calls = 0
        self._last: deque[int] = deque(maxlen=_ENOUGH)
        self._blamed: deque[bool] = deque(maxlen=_ENOUGH)
        self._warned: set[str] = set()

    def blamed(self, metric: str, why: str) -> None:
        """Count a text that prevents a verdict; `metric` and `why` give the cause."""
        self._blamed.append(True)
        self._warn(
            metric,
            f"judges other texts and not this one, which gets the lowest score ({metric}): {why}",
        )
        if self._blamed.count(True) >= _ENOUGH * _OFTEN:
            self._warn(
                "blamed",
                f"gave no verdict on {self._blamed.count(True)} of its last {len(self._blamed)} "
                "texts, which get the lowest score: if they are as they should be, raise "
                "max_tokens, lower max_text_bytes (its context), or ask a judge without such a "
                "filter",
            )

    def verdict(self, criterion: str, score: int) -> None:
        """Count a fresh verdict."""
        self._blamed.append(False)
        first, count = self._same.get(criterion, (score, 0))
        count = count + 1 if count >= 0 and score == first else -1
        self._same[criterion] = first, count
        if count == _ENOUGH:
            self._warn(
                f"same {criterion}",
                f"gave the score {score} to all of its first {_ENOUGH} texts by the criterion "
                f"{criterion!r}: such rewards teach nothing; reword the criterion, or look at what "
                "the judge is shown",
            )

    def call(self, tokens: int, usd: float) -> None:
        """Count a call that cost `tokens` and `usd`."""
        self._calls += 1
        self._usd += usd
        self._last.append(tokens)
        if self._calls <= _ENOUGH:
            self._first += tokens
        elif self._calls >= 2 * _ENOUGH and sum(self._last) > _GROWTH * self._first > 0:
            self._warn(
                "growth",
                f"takes {sum(self._last) / _ENOUGH:,.0f} tokens per call by now, and took "
                f"{self._first / _ENOUGH:,.0f} at first: the judged texts grow, and its cost with "
                "them (max_text_bytes bounds it)",
            )
        if self._usd > self._warn_usd:
            self._warn("usd", f"has cost ${self._usd:,.2f} in this process (warn_usd)")

    def _warn(self, kind: str, what: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("judge %s %s. This warning is shown once", self._judge, what)
