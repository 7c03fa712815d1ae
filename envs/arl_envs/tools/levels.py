"""The difficulty levels: which tools, how large a world, how long a request."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym_rl.errors import ConfigError

from .world import Size


@dataclass(frozen=True, slots=True)
class Level:
    """One difficulty."""

    number: int
    tools: tuple[str, ...]
    size: Size
    prompt: str
    max_turns: int
    """Assistant messages an episode may have, the final one included."""
    impossible: float = 0.0


LEVELS = {
    level.number: level
    for level in (
        Level(
            1,
            tools=("find_order", "get_order", "cancel_order", "ship_order", "refund_order"),
            size=Size(customers=4, orders=1, products=4),
            prompt="Use the tools. At the end say Answer: done, or Answer: and the number.",
            max_turns=5,
        ),
    )
}


def level_of(number: object) -> Level:
    """The level called `number`.

    Raises:
        ConfigError: there is no such level.
    """
    if isinstance(number, bool) or not isinstance(number, int) or number not in LEVELS:
        raise ConfigError(f"tools has no level {number!r}; allowed: {', '.join(map(str, LEVELS))}")
    return LEVELS[number]
