"""The split of the episodes of a minibatch over ranks, which wait for each other at every
micro-batch (no torch: the controller uses it)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .balance import balance
from .prefixes import Chain, Tokens, chained

_NEAR = 0.005
"""The relative excess over the smallest possible maximum at which a split is good enough."""
_WORTH = 0.93
"""The distinct tokens of the largest part, relative to those without regard to beginnings, above
which it is not worth keeping rows together: attention copies the keys of shared tokens, and some
models compute rows separately."""


def deal(
    episodes: Sequence[Sequence[Tokens]], groups: Sequence[int], num_parts: int
) -> list[list[int]]:
    """Return the indices of episodes in `num_parts` parts, the largest first, which is as small as
    possible; parts may be empty. `episodes` has the rows of each one, `groups` its group's number.

    Parts have few tokens at most, or, if that is clearly less, few distinct tokens: beginnings that
    rows of a part share are computed once. So episodes that share one stay together where this
    saves more than it costs. Deterministic.
    """
    if num_parts == 1:
        return [list(range(len(episodes)))]
    chain = chained([row for rows in episodes for row in rows])
    shared = _Rows(episodes, chain)
    parts = _split(
        _Rows(episodes, chain._replace(shared=[0] * len(chain.order))), groups, num_parts
    )
    if any(chain.shared):
        together = _split(shared, groups, num_parts)
        if together.largest < _WORTH * max(map(shared.size, parts.parts)):
            parts = together
    return sorted(parts.parts, key=lambda part: -shared.size(part))


class _Split(NamedTuple):
    largest: int
    """The size of the largest part."""
    parts: list[list[int]]


def _split(rows: _Rows, groups: Sequence[int], num_parts: int) -> _Split:
    """Return all episodes in parts of which the largest is small.

    The method is multifit, Coffman, Garey & Johnson 1978 (https://doi.org/10.1137/0207001): best
    fit with the smallest capacity that bisection finds. It begins with the best of whole groups
    and of episodes dealt one by one.
    """
    longest = sorted(range(len(groups)), key=lambda episode: -rows.alone[episode])
    members: dict[int, list[int]] = {}
    for episode in longest:
        members.setdefault(groups[episode], []).append(episode)
    whole = sorted(members.values(), key=lambda its: -rows.size(its))
    parts = balance([rows.size(its) for its in whole], num_parts)
    dealt = [[episode for i in part for episode in whole[i]] for part in parts]
    orders = (longest, [episode for its in whole for episode in its])
    best = min(
        (_Split(max(map(rows.size, dealt)), dealt), *(rows.dealt(it, num_parts) for it in orders)),
        key=lambda it: it.largest,
    )
    least = max([-(-rows.size(longest) // num_parts), *rows.alone])
    for order in orders:
        low = least
        while best.largest - low > _NEAR * best.largest:
            middle = (low + best.largest) // 2
            found = rows.dealt(order, num_parts, capacity=middle)
            if found.parts:
                best = found
            else:
                low = middle + 1
    return best


class _Rows:
    """The rows of episodes in the order of a chain, in which the longest beginning that a row
    shares with any other is shared with a neighbour. Rows are given by their places in it."""

    def __init__(self, episodes: Sequence[Sequence[Tokens]], chain: Chain) -> None:
        lengths = [len(row) for rows in episodes for row in rows]
        owner = [episode for episode, rows in enumerate(episodes) for _ in rows]
        self._shared = np.array(chain.shared, np.int64)
        self._own = np.array([lengths[index] for index in chain.order], np.int64)
        """The tokens of each row."""
        self._known = np.zeros_like(self._own)
        """The tokens that each row shares with an earlier row of its episode."""
        self._places: list[list[int]] = [[] for _ in episodes]
        for place, index in enumerate(chain.order):
            its = self._places[owner[index]]
            if its:
                self._known[place] = self._shared[its[-1] + 1 : place + 1].min()
            its.append(place)
        self.alone = [int((self._own - self._known)[its].sum()) for its in self._places]
        """The size of each episode."""

    def size(self, episodes: Sequence[int]) -> int:
        """Return the number of distinct tokens of episodes."""
        return self.dealt(episodes, 1).largest

    def dealt(self, order: Sequence[int], num_parts: int, *, capacity: int | None = None) -> _Split:
        """Deal episodes in this order, each to the part that is then the smallest; with a
        `capacity`, to the one that is then the largest within it. No parts: they do not fit."""
        limit = sys.maxsize if capacity is None else capacity
        sizes = np.zeros(num_parts, np.int64)
        common = np.zeros((num_parts, len(self._own)), np.int64)
        """The most tokens that each row shares with a row of each part."""
        parts: list[list[int]] = [[] for _ in range(num_parts)]
        for episode in order:
            its = self._places[episode]
            known = np.maximum(common[:, its], self._known[its])
            after = sizes + (self._own[its] - known).sum(1)
            fits = np.where(after <= limit, after, -1)
            part = int(after.argmin() if capacity is None else fits.argmax())
            if after[part] > limit:
                return _Split(0, [])
            sizes[part] = after[part]
            parts[part].append(episode)
            for place in its:
                np.maximum(common[part], self._beginnings(place), out=common[part])
        return _Split(int(sizes.max()), parts)

    def _beginnings(self, place: int) -> npt.NDArray[np.int64]:
        """Return the number of tokens that a row has in common with each of the others."""
        before = np.minimum.accumulate(self._shared[place:0:-1])[::-1]
        after = np.minimum.accumulate(self._shared[place + 1 :])
        return np.concatenate((before, [self._own[place]], after))
