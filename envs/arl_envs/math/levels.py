"""The difficulty levels: the problems, the strength of the calculator, the number of turns."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from agentgym_rl.core.errors import ConfigError

from .calculator import ONE_OPERATION, WHOLE_EXPRESSION, Calculator
from .expressions import expression
from .problem import Problem
from .rationals import rational
from .stories import long_story, short_story


@dataclass(frozen=True, slots=True)
class Level:
    """A difficulty level."""

    number: int
    generate: Callable[[random.Random], Problem]
    calculator: Calculator
    max_turns: int
    """The most assistant messages in an episode, the final answer included."""

    def problem(self, seed: int) -> Problem:
        """Return the problem of `seed`: a pure function of level and seed, in any process."""
        return self.generate(random.Random(f"arl-math/{self.number}/{seed}"))


LEVELS = {
    level.number: level
    for level in (
        Level(1, short_story, ONE_OPERATION, 4),
        Level(2, expression, WHOLE_EXPRESSION, 8),
        Level(3, long_story, WHOLE_EXPRESSION, 10),
        Level(4, rational, WHOLE_EXPRESSION, 8),
    )
}


def level_of(number: object) -> Level:
    """Return the level with this `number`.

    Raises:
        ConfigError: there is no such level.
    """
    if isinstance(number, bool) or not isinstance(number, int) or number not in LEVELS:
        raise ConfigError(f"math has no level {number!r}; allowed: {', '.join(map(str, LEVELS))}")
    return LEVELS[number]
