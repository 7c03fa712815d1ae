"""The shared beginnings of rows: tokens that several rows share are computed once, so rows with a
shared beginning belong into one micro-batch (no torch: the controller uses it)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .balance import check_fit, fill_bins

Tokens = npt.NDArray[np.integer[Any]]

LEAST_SHARED = 16
"""The shortest common beginning, in tokens, that is shared: shorter ones save almost nothing,
because each needs an attention call with copied keys."""
MOST_COPIES = 4
"""The most copies of keys that attention keeps for the gradient, times the tokens of a micro-batch.
Further copies are made again in the backward pass."""
_COPIES_PER_TOKEN = 12
"""The number of copied keys that take the memory of one token's activations, or less: of the about
25 vectors that a block of a transformer keeps for the gradient of a token, a key and its value are
two, or less than one of them with grouped queries."""


class Chain(NamedTuple):
    """Rows in an order in which each shares its longest beginning with the one before it. Rows that
    share nothing keep their order."""

    order: list[int]
    """The indices of the rows. A row comes before the rows that are only its beginning."""
    shared: list[int]
    """The number of first tokens that each of them has in common with the one before it; 0 if there
    are fewer than are worth sharing."""


def chained(rows: Sequence[Tokens], *, least: int = LEAST_SHARED) -> Chain:
    """Return rows of token ids as a chain; beginnings of less than `least` tokens are not shared.

    In a sorted list no earlier row has more in common with a row than its neighbour.
    """
    texts = [np.ascontiguousarray(row, np.int32).tobytes() for row in rows]
    order = sorted(range(len(rows)), key=texts.__getitem__, reverse=True)
    families: list[list[tuple[int, int]]] = []
    for before, index in zip([-1, *order], order, strict=False):
        common = _common(rows[before], rows[index]) if before >= 0 else 0
        if common < max(1, least):
            families.append([])
            common = 0
        families[-1].append((index, common))
    families.sort(key=min)
    members = [member for family in families for member in family]
    return Chain([index for index, _ in members], [common for _, common in members])


def num_distinct(rows: Sequence[Tokens]) -> int:
    """Return the number of tokens of the rows, with shared beginnings counted once."""
    return sum(map(len, rows)) - sum(chained(rows).shared)


def fill_shared(
    lengths: Sequence[int], chain: Chain, budget: int, *, least: int = 1
) -> list[list[int]]:
    """Return the indices of rows of these lengths in few bins that are evenly filled, with rows of
    a common beginning in the same bin, by their `chain`; in up to `least` bins, where few would do,
    if the largest one is smaller then.

    A bin's rows have at most `budget` distinct tokens together, less where copies of shared keys
    take memory too.

    Raises:
        ValueError: one row is longer than the budget.
    """
    check_fit(lengths, budget)
    costs = _Costs(lengths, chain)
    largest, places = costs.filled(budget, budget)
    # Bins stay half empty if few families fit into one; then splitting families costs less.
    every = range(len(lengths))
    runs = costs.cut(every, budget)
    if len(runs) < len(places):
        largest, places = max(map(costs.of, runs)), [list(run) for run in runs]
    limit = -(-costs.of(every) // least)
    while len(places) < least and limit < largest:  # pieces of a family may be too many
        smaller, more = costs.filled(limit, budget, least=least)
        if smaller < largest and len(more) <= least:
            largest, places = smaller, more
        limit += 1 + limit // 4
    return [sorted(chain.order[place] for place in part) for part in places]


class _Costs:
    """The costs, in tokens, of rows of a chain that are packed together; rows are given by their
    places in the chain."""

    def __init__(self, lengths: Sequence[int], chain: Chain):
        self._shared = chain.shared
        self._alone = [lengths[index] for index in chain.order]

    def of(self, run: Sequence[int]) -> int:
        """Return the cost of rows that follow each other in the chain."""
        cost = _Cost()
        for place in run:
            cost = self._with(cost, place)
        return cost.whole

    def _with(self, cost: _Cost, place: int) -> _Cost:
        length, shared = self._alone[place], self._shared[place] if cost.tokens else 0
        copies = length if 0 < shared < length else 0
        return _Cost(cost.tokens + length - shared, cost.copies + copies)

    def families(self) -> list[range]:
        """Return the runs of rows in which each shares a beginning with the one before it."""
        starts = [place for place, shared in enumerate(self._shared) if not shared]
        return [range(a, b) for a, b in pairwise([*starts, len(self._alone)])]

    def filled(self, limit: int, budget: int, *, least: int = 1) -> tuple[int, list[list[int]]]:
        """Return the rows in bins within the budget, of families that are cut into pieces within
        the limit; and the cost of the largest bin."""
        pieces = [run for family in self.families() for run in self.cut(family, limit)]
        sizes = [self.of(run) for run in pieces]
        bins = fill_bins(sizes, budget, least=least)
        largest = max((sum(sizes[n] for n in members) for members in bins), default=0)
        return largest, [[place for n in members for place in pieces[n]] for members in bins]

    def cut(self, run: range, budget: int) -> list[range]:
        """Return `run` in as few pieces within the budget as possible, with the costliest piece as
        cheap as possible."""
        pieces = self._next_fit(run, budget)
        low, high = max((self._alone[place] for place in run), default=0), budget
        while len(pieces) > 1 and low < high:
            middle = (low + high) // 2
            found = self._next_fit(run, middle)
            if len(found) > len(pieces):
                low = middle + 1
            else:
                pieces, high = found, middle
        return pieces

    def _next_fit(self, run: range, limit: int) -> list[range]:
        pieces: list[range] = []
        start, cost = run.start, _Cost()
        for place in run:
            longer = self._with(cost, place)
            if place > start and longer.whole > limit:
                pieces.append(range(start, place))
                start, longer = place, self._with(_Cost(), place)
            cost = longer
        return [*pieces, range(start, run.stop)] if len(run) else []


class _Cost(NamedTuple):
    tokens: int = 0
    """The distinct tokens."""
    copies: int = 0

    @property
    def whole(self) -> int:
        return self.tokens + min(self.copies, MOST_COPIES * self.tokens) // _COPIES_PER_TOKEN


def _common(one: Tokens, other: Tokens) -> int:
    """Return the length of the common beginning."""
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length
