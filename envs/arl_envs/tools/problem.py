"""A request, its world, and the required result; the endless, seeded tasks, of which the hash of
the request separates held-out ones; and the perfect agent."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_args

from agentgym_rl import ConfigError, Message, Task, TaskSource
from agentgym_rl.core import Split, derived_number
from arl_envs.splits import split_of

from .about_orders import by_name
from .answers import answer
from .compose import Plan, composed
from .goals import Ask, Goal, GoldCall
from .levels import Level
from .shop import WRITES, Database, Desk, Row
from .shop.rules import Attempt, RuleRefusal, attempt_of
from .world import World, draw

_MAX_DRAWS = 1000
_LEAST_CHARS = 3
_REFERENCE = re.compile(r"ref (\d+)")


@dataclass(frozen=True, slots=True)
class Problem:
    """The complete content of a task; a pure function of its level and seed."""

    request: str
    salt: str
    image: bytes
    """The image of the initial world."""
    end: str
    """The required `Database.state` at the end."""
    changed: frozenset[Row]
    """The rows that may be changed on the way: those that the request is about."""
    facts: tuple[str, ...]
    refused: frozenset[Attempt]
    """The attempts that may be refused, since they are part of the request."""
    calls: tuple[GoldCall, ...]
    ask: Ask | None
    """The open part of the request; agents that ask nothing, or anything else, get no reward."""


@lru_cache(maxsize=128)  # a task is drawn, then played by a complete group
def problem_of(level: Level, seed: int) -> Problem:
    """Return the problem of `seed`.

    Raises:
        ConfigError: the level's knobs allow no request.
    """
    source = random.Random(f"arl-tools/{level.name}/{seed}")
    plan = Plan.draw(source, level) if level.number > 1 else None
    for _ in range(_MAX_DRAWS):  # until the shop's tools agree with the generator
        world = draw(source, level.size)
        drawn = composed(source, world, plan, level) if plan else by_name(source, world)
        if drawn is None:
            continue
        salt = f"{source.getrandbits(64):x}"
        if found := _played(world, salt, *drawn):
            return found
    raise ConfigError(
        f"tools level {level.name}: no request came of {_MAX_DRAWS} worlds for {plan}; raise "
        "num_calls, or lower ambiguity or impossible"
    )


def _played(world: World, salt: str, request: str, goals: Sequence[Goal]) -> Problem | None:
    """Make the calls and return the problem; None if the calls do not have the planned effects."""
    database = Database.of(world.rows())
    try:
        image, desk = database.image(), Desk(database, salt)
        calls: dict[Attempt, GoldCall] = {}
        facts: list[str] = []
        for goal in goals:
            for call in goal.calls[:-1]:
                if _done(desk, call)[1]:
                    return None
                calls[attempt_of(call.tool, call.arguments)] = call
            fact = _fact(desk, goal)
            if fact is None or (fact and not _is_informative(fact, request)):
                return None
            facts += [fact] if fact else []
            calls[attempt_of(goal.calls[-1].tool, goal.calls[-1].arguments)] = goal.calls[-1]
        end, changed = database.state(), frozenset(database.changed)
    finally:
        database.close()
    return Problem(
        request=request,
        salt=salt,
        image=image,
        end=end,
        changed=changed,
        facts=tuple(facts),
        refused=frozenset(desk.refused),
        calls=tuple(calls.values()),
        ask=goals[0].ask,
    )


def _fact(desk: Desk, goal: Goal) -> str | None:
    """Make a goal's last call and return the fact to report; None for an unplanned effect."""
    before = desk.database.state()
    result, refused = _done(desk, goal.calls[-1])
    changed = desk.database.state() != before
    writes = goal.calls[-1].tool in WRITES
    if refused is not goal.refused or changed is not (writes and not refused):
        return None
    if refused:
        return f"refused {_REFERENCE.findall(result)[-1]}"
    if not goal.fact:
        return ""
    found = re.search(goal.fact, result)
    return found[1] if found else None


def _is_informative(fact: str, request: str) -> bool:
    """Return whether the fact cannot be guessed: it is long enough, and not in the request."""
    value = fact.split()[-1]
    return len(value) >= _LEAST_CHARS and value not in request


def _done(desk: Desk, call: GoldCall) -> tuple[str, bool]:
    """Make a call; return its result, and whether it is a refusal."""
    try:
        return getattr(desk, call.tool)(**call.arguments), False
    except RuleRefusal as error:
        return str(error), True


class ToolsTasks(TaskSource):
    """The tasks of one level and split; a pure function of (level, split, seed, index).

    `Task.seed` regenerates the world; `Task.data` holds the level, its turned knobs and the
    request. Train and eval share no request, whatever their seeds.
    """

    def __init__(self, split: Split, *, seed: int, level: Level) -> None:
        if split not in get_args(Split):
            raise ConfigError(f"no split is called {split!r}; allowed: train, eval")
        self._split: Split = split
        self._seed = seed
        self._level = level

    def __getitem__(self, index: int, /) -> Task:
        if index < 0:
            raise IndexError(f"task index {index}: expected 0 or more")
        attempt = 0
        while True:  # each split has about half of all requests
            key = f"{self._level.name}/{self._split}/{self._seed}/{index}/{attempt}"
            seed = derived_number(key, bits=56)
            request = problem_of(self._level, seed).request
            if split_of(request) == self._split:
                data: dict[str, Any] = {"level": self._level.number, "request": request}
                if self._level.knobs:
                    data["knobs"] = dict(self._level.knobs)
                name = f"tools{self._level.number}-{self._split}-{self._seed}-{index}"
                return Task(id=name, seed=seed, data=data, split=self._split)
            attempt += 1


def solve(problem: Problem) -> list[Message]:
    """Return the assistant messages of a perfect episode: one call per message, a question
    if one is needed, then the answer."""
    messages = [call_message(call, call_id=f"call_{i}") for i, call in enumerate(problem.calls)]
    if problem.ask is not None:
        messages.insert(problem.ask.after, text_message(problem.ask.question))
    return [*messages, text_message(answer(problem.facts))]


def call_message(call: GoldCall, *, call_id: str) -> dict[str, Any]:
    """Return an assistant message that makes one call."""
    function = {"name": call.tool, "arguments": json.dumps(dict(call.arguments))}
    made = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


def text_message(text: str) -> dict[str, Any]:
    """Return an assistant message without a call."""
    return {"role": "assistant", "content": text}
