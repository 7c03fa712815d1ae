"""The allowed distance of a number from the value that a row expects."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from agentgym_rl.gym.data import RowRefused
from arl_envs.code.problem import Tolerance

ROUNDING = Tolerance(relative=1e-6, absolute=1e-12)
"""The tolerance for equality in a row: right solutions differ in the last digits, and by their
remainder around 0. For expected numbers so small that 0 would pass, see `rounding_of`."""
PRINTED = Tolerance(relative=1e-6, absolute=1e-6)
"""The tolerance of printed numbers, as in programming contests."""

_WIDE = 0.5


def rounding_of(expected: Any) -> Tolerance:
    """Return `ROUNDING`, but not so wide that 0 passes for a smaller expected number."""
    least = min(filter(None, map(abs, _floats(expected))), default=1.0)
    return Tolerance(ROUNDING.relative, min(ROUNDING.absolute, ROUNDING.relative * least))


def tolerance_of(expected: Any, *, relative: float = 0.0, absolute: float = 0.0) -> Tolerance:
    """Return the tolerance that a row itself gives for `expected`.

    Raises:
        RowRefused: a bound is negative or not finite, or so wide that it tests nothing: `relative`
            is 1 or more, or the allowed difference is 0.5 or more and no smaller than every
            expected float, as 0 would then pass.
    """
    for bound in (relative, absolute):
        if not 0 <= bound <= sys.float_info.max:
            raise RowRefused(f"tolerance: got {bound:g}, expected a finite number from 0")
    sizes = list(map(abs, _floats(expected)))
    if sizes:
        allowed = max(relative * max(sizes), absolute)
        if relative >= 1 or allowed >= max(_WIDE, *sizes):
            raise RowRefused(f"a tolerance of {allowed:g} around {max(sizes):g} says nothing")
    return Tolerance(float(relative), float(absolute))


def _floats(value: Any) -> list[float]:
    if isinstance(value, float | complex):
        return [abs(value)]
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list | tuple | set | frozenset | deque):
        return []
    return [number for item in value for number in _floats(item)]
