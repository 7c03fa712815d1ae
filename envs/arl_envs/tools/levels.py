"""The difficulty levels: the tools, the size of the world, and the length of a request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from agentgym_rl import ConfigError

from .shop import tools_of
from .world import Size

FIRST_PROMPT = "Use the tools. At the end say Answer: done, or Answer: and the number."
PROMPT = """\
You work in the back office of a shop. Do what is asked by calling tools; change nothing else, \
and try nothing else.
What the shop's rules forbid, a tool refuses with a number (ref); then leave it undone.
If a name turns out to be several customers', or a customer to have several orders, and the \
request does not say which is meant, ask: a message that ends with a question mark gets a reply. \
Ask nothing else.
Your last message ends with one line: "Answer: done". If something was asked for, the line says \
that instead; if something was refused, it says so with the number. Several are said in the order \
of the request, as in "Answer: 349, refused 417"."""


@dataclass(frozen=True, slots=True)
class Level:
    """A difficulty level."""

    number: int
    tools: tuple[str, ...]
    size: Size
    num_calls: tuple[int, int]
    """The smallest and largest number of calls of a perfect agent."""
    num_tables: int = 5
    distractors: int = 0
    """The number of irrelevant sentences, and of customers with a shared name."""
    ambiguity: float = 0.0
    """The share of requests that leave open which customer or order is meant."""
    impossible: float = 0.0
    """The share of requests with a goal that the rules forbid."""
    knobs: tuple[tuple[str, Any], ...] = ()
    """The settings that differ from the level's defaults."""

    @property
    def prompt(self) -> str:
        """Return the text of the system message."""
        return FIRST_PROMPT if self.number == 1 else PROMPT

    @property
    def max_turns(self) -> int:
        """Return the limit on assistant messages: twice those of a perfect agent, plus one."""
        return 5 if self.number == 1 else 2 * (self.num_calls[1] + 2) + 1

    @property
    def name(self) -> str:
        """Return the name that seeds tasks: levels with different knobs have different tasks."""
        return "/".join([str(self.number), *(f"{name}={value}" for name, value in self.knobs)])


def _level(number: int, customers: int, orders: int, **more: Any) -> Level:
    return _sized(Level(number, tools=(), size=Size(customers, orders, products=customers), **more))


def _sized(level: Level) -> Level:
    """Return the level with the tools of its tables, and a world with rows in these tables."""
    size = replace(
        level.size,
        namesakes=min(level.distractors + (level.ambiguity > 0), level.size.customers // 2),
        appointments=2 * level.size.customers if level.num_tables >= 6 else 0,
        tickets=2 * level.size.customers if level.num_tables >= 7 else 0,
    )
    return replace(level, tools=tools_of(level.num_tables), size=size)


LEVELS = {
    level.number: level
    for level in (
        Level(
            1,
            tools=("find_order", "get_order", "cancel_order", "ship_order", "refund_order"),
            size=Size(customers=4, orders=1, products=4),
            num_calls=(2, 2),
        ),
        _level(2, 6, 2, num_calls=(2, 3), distractors=1, impossible=0.1),
        _level(
            3, 8, 2, num_calls=(2, 4), num_tables=7, distractors=1, ambiguity=0.2, impossible=0.2
        ),
        _level(
            4, 10, 3, num_calls=(3, 5), num_tables=7, distractors=2, ambiguity=0.25, impossible=0.25
        ),
        _level(
            5, 14, 3, num_calls=(4, 6), num_tables=7, distractors=4, ambiguity=0.3, impossible=0.3
        ),
    )
}

_ALLOWED = {
    "num_calls": (int, 1, 6),
    "num_tables": (int, 5, 7),
    "distractors": (int, 0, 5),
    "ambiguity": (float, 0, 1),
    "impossible": (float, 0, 1),
}


def level_of(number: object, **knobs: Any) -> Level:
    """Return the level `number` with those of the `knobs` that are not None.

    Raises:
        ConfigError: there is no such level, a value is not allowed, or knobs are set for level 1,
            which has none.
    """
    if isinstance(number, bool) or not isinstance(number, int) or number not in LEVELS:
        raise ConfigError(f"tools has no level {number!r}; allowed: {', '.join(map(str, LEVELS))}")
    level = LEVELS[number]
    turned = {name: value for name, value in sorted(knobs.items()) if value is not None}
    if not turned:
        return level
    if number == 1:
        raise ConfigError(f"level 1 is as it is: {', '.join(turned)} need level 2 or more")
    for name, value in turned.items():
        kind, low, high = _ALLOWED[name]
        number_like = isinstance(value, (int, kind)) and not isinstance(value, bool)
        if not number_like or not low <= value <= high:
            raise ConfigError(f"{name}: got {value!r}, allowed: {kind.__name__} {low} to {high}")
    if turned.get("num_calls") == 1 and turned.get("ambiguity"):
        raise ConfigError("a request of num_calls 1 leaves nothing open: ambiguity must be 0")
    knobs_set = tuple(turned.items())
    if "num_calls" in turned:
        turned["num_calls"] = (turned["num_calls"], turned["num_calls"])
    return _sized(replace(level, knobs=knobs_set, **turned))
