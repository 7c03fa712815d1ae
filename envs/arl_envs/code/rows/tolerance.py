"""How far a number may be from what a row wants."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from agentgym_rl.gym.data import RowRefused
from arl_envs.code.problem import Tolerance

ROUNDING = Tolerance(relative=1e-6, absolute=1e-12)
"""Where a row asks for equality: right solutions differ in the last digits, and around 0 by what
is left of them. Of wanted numbers so small that 0 would pass, see `rounding_of`."""
PRINTED = Tolerance(relative=1e-6, absolute=1e-6)
"""Of printed numbers, as programming contests have it."""

_WIDE = 0.5


def rounding_of(expected: Any) -> Tolerance:
    """`ROUNDING`, but never so wide that 0 passes for a smaller number that is wanted."""
    least = min(filter(None, map(abs, _floats(expected))), default=1.0)
    return Tolerance(ROUNDING.relative, min(ROUNDING.absolute, ROUNDING.relative * least))


def tolerance_of(expected: Any, *, relative: float = 0.0, absolute: float = 0.0) -> Tolerance:
    """What a row says itself about `expected`.

    Raises:
        RowRefused: a bound is negative or not finite, or says nothing: `relative` from 1, or a
            difference that is allowed from 0.5 which is no smaller than every float wanted, as 0
            would pass then.
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
