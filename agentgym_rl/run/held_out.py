"""The held-out tasks of a run, among the rows of its warm-up: whoever learns them by heart is not
measured by them any more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentgym_rl.config import EnvConfig, EvalConfig, RolloutConfig
from agentgym_rl.evaluate.evaluate import planned
from agentgym_rl.rollout.player import env_spec

from .demonstrations import Notes

_VERSION = re.compile(r"-v[0-9]+$")
_REMEDY = (
    "To learn from episodes of training tasks, play them with `arl eval --eval.split=train`, or "
    "choose them with `arl export --split train`"
)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The tasks that a run evaluates, by environment and id."""

    env: str
    tasks: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, env: EnvConfig, rollout: RolloutConfig, chosen: EvalConfig) -> HeldOut:
        """Return the tasks that a run with these sections evaluates.

        Raises:
            ConfigError: they cannot be had.
        """
        name = _name(env.id)
        if not chosen.num_tasks:
            return cls(name, frozenset())
        source = env_spec(env, rollout).task_source("eval", seed=chosen.seed)
        ids = {source[place.index].id for place in planned(source, chosen)}
        return cls(name, frozenset(_key(name, id) for id in ids))

    def check(self, row: Mapping[str, Any], notes: Notes) -> None:
        """Refuse a row that is an episode of a held-out task, as its columns `env` and `task_id`
        name it; note a row of another task of the same split.

        Raises:
            ValueError: the row is one.
        """
        env, id = row.get("env") or self.env, row.get("task_id")
        key = _key(_name(str(env)), str(id))
        if id is not None and key in self.tasks:
            raise ValueError(
                f"the episode of the task {id!r}, which this run evaluates: a model that learned "
                f"it is not measured by it. {_REMEDY}"
            )
        mine = {self.env, *(name for name, _ in self.tasks)}
        if row.get("split") == "eval" and key[0] in mine:
            notes.add(
                f"row of a held-out task of {key[0]} (split eval), learned: evaluations of these "
                f"tasks are none of unseen ones. {_REMEDY}"
            )


def _name(env: str) -> str:
    return _VERSION.sub("", env)


def _key(env: str, id: str) -> tuple[str, str]:
    """Return environment and id; a mix names its member in front of the id."""
    member, slash, rest = id.partition("/")
    mixed = slash and (env.startswith("mix") or _name(member) == env)
    return (_name(member), rest) if mixed else (env, id)
