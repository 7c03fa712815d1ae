"""The members of a mix: its environments and their weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from agentgym_rl import ConfigError, Env, EnvSpec, TaskSource, spec
from agentgym_rl.core import Split

_KEYS = {"id", "name", "weight", "options"}
_FORMS = (
    'envs is "math=2,code=1", or a list of tables {id = "math", weight = 2, options = {level = 1}} '
    "with a name of their own where an id is there twice"
)

Envs = str | Sequence[str | Mapping[str, Any]]


@dataclass(frozen=True)
class Member:
    """An environment of a mix, with its weight."""

    name: str
    """The name, by default the id; it is `info["env_id"]` of the member's episodes."""
    weight: float
    spec: EnvSpec

    @cached_property
    def sample(self) -> Env:
        """Make an environment that is never played: it checks the options and has the limits."""
        return self.spec.make()

    def tasks(self, split: Split, *, seed: int) -> TaskSource:
        """Return the member's own tasks."""
        return self.spec.task_source(split, seed=seed)


def members_of(envs: Envs) -> tuple[Member, ...]:
    """Return the members that the option `envs` of a mix names, in its order.

    The result is cached for the process, since a mix is made anew for every episode.

    Raises:
        ConfigError: `envs` names no member, an unknown one, or one twice; the message names it.
    """
    try:
        return _members(json.dumps(envs))
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"mix: envs is no JSON ({error}); {_FORMS}") from error


@lru_cache(maxsize=64)
def _members(envs: str) -> tuple[Member, ...]:
    given = json.loads(envs)
    if isinstance(given, str):
        given = [part for part in (part.strip() for part in given.split(",")) if part]
    if not isinstance(given, list) or not given:
        raise ConfigError(f"mix: got envs = {given!r}; {_FORMS}")
    members = tuple(_member(_short(one) if isinstance(one, str) else one) for one in given)
    names = [member.name for member in members]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"mix: {', '.join(twice)} is there twice; {_FORMS}")
    return members


def _short(text: str) -> dict[str, Any]:
    """Parse `math=2` or `math`."""
    id, equals, weight = text.rpartition("=")
    if not equals:
        return {"id": text}
    try:
        return {"id": id, "weight": float(weight)}
    except ValueError:
        raise ConfigError(f"mix: {weight!r} of {text!r} is no weight; {_FORMS}") from None


def _member(table: object) -> Member:
    if not isinstance(table, dict) or not isinstance(table.get("id"), str) or set(table) - _KEYS:
        raise ConfigError(f"mix: got the member {table!r}; {_FORMS}")
    id, weight, options = table["id"], table.get("weight", 1), table.get("options", {})
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise ConfigError(f"mix: {id} has weight {weight!r}, expected a number above 0")
    if not isinstance(options, dict):
        raise ConfigError(f"mix: {id} has options {options!r}, expected a table")
    name = str(table.get("name", id))
    return Member(name=name, weight=weight, spec=spec(id).with_options(**options))
