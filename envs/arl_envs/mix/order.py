"""The order of members: in proportion to their weights, evenly spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm

from agentgym_rl import ConfigError
from agentgym_rl.core import derived_number

MAX_CYCLE = 100_000


class Order:
    """A pure function from the index of a turn to (member, number of the turn of this member).

    Turns come in cycles in which every member has exactly its share; within a cycle they are
    spread as evenly as possible (smooth weighted round robin). `seed` sets the start of the first.

    Raises:
        ConfigError: the shares need a cycle of more than `MAX_CYCLE` turns.
    """

    def __init__(self, weights: Sequence[float], *, seed: int = 0) -> None:
        self._shares = _shares(weights)
        self._turns = _cycle(self._shares)
        self._start = derived_number(f"mix/{seed}", bits=56) % len(self._turns)
        # Every member begins with its task 0, wherever the first cycle begins.
        self._skipped = Counter(member for member, _ in self._turns[: self._start])

    def at(self, index: int) -> tuple[int, int]:
        """Return the member whose turn `index` is, and the number of its earlier turns."""
        cycle, place = divmod(index + self._start, len(self._turns))
        member, earlier = self._turns[place]
        return member, cycle * self._shares[member] + earlier - self._skipped[member]

    def index_of(self, member: int, turn: int) -> int:
        """Return the index of a member's turn: the inverse of `at`."""
        cycle, place = divmod(turn + self._skipped[member], self._shares[member])
        found = cycle * len(self._turns) + self._turns.index((member, place))
        return found - self._start


def _shares(weights: Sequence[float]) -> list[int]:
    """Return the smallest whole numbers in proportion to `weights`, read as decimal fractions."""
    exact = [Fraction(str(weight)) for weight in weights]
    whole = [int(weight * lcm(*(w.denominator for w in exact))) for weight in exact]
    shares = [weight // gcd(*whole) for weight in whole]
    if sum(shares) > MAX_CYCLE:
        raise ConfigError(
            f"mix: weights {list(weights)} come out even after {sum(shares):,} tasks only "
            f"(at most {MAX_CYCLE:,}); round them"
        )
    return shares


def _cycle(shares: Sequence[int]) -> list[tuple[int, int]]:
    """Return (member, number of its earlier turns in the cycle) for every turn of a cycle."""
    total, had = sum(shares), [0] * len(shares)
    credit = [0] * len(shares)
    turns: list[tuple[int, int]] = []
    for _ in range(total):
        credit = [have + share for have, share in zip(credit, shares, strict=True)]
        chosen = max(range(len(shares)), key=credit.__getitem__)
        credit[chosen] -= total
        turns.append((chosen, had[chosen]))
        had[chosen] += 1
    return turns
