"""The search for a run's held-out tasks among the rows of its warm-up: a model that has learned
them is not measured by them any more."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arl_data.words import words_of

from agentgym_rl.config import EnvConfig, EvalConfig, RolloutConfig
from agentgym_rl.core import is_list, is_mapping
from agentgym_rl.evaluate.evaluate import planned
from agentgym_rl.gateway.messages import text_of
from agentgym_rl.rollout import env_spec

from .demonstrations import Notes

_VERSION = re.compile(r"-v[0-9]+$")
_SURE = 20
"""The number of characters, without spaces, from which a common text is not a coincidence."""
_REMEDY = (
    "To learn from episodes of training tasks, play them with `arl eval --eval.split=train`, or "
    "choose them with `arl export --split train`"
)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The tasks that a run evaluates, by environment and id."""

    env: str
    tasks: frozenset[tuple[str, str]]
    texts: frozenset[str] = frozenset()
    """The words of texts that only one of these tasks has, such as its question."""

    @classmethod
    def of(cls, env: EnvConfig, rollout: RolloutConfig, chosen: EvalConfig) -> HeldOut:
        """Return the tasks that a run with these sections evaluates.

        Raises:
            ConfigError: the tasks cannot be read.
        """
        name = _name(env.id)
        if not chosen.num_tasks:
            return cls(name, frozenset())
        source = env_spec(env, rollout).task_source("eval", seed=chosen.seed)
        indices = dict.fromkeys(place.index for place in planned(source, chosen))
        tasks = [source[index] for index in indices]
        found = Counter(text for task in tasks for text in set(_texts(task.data)))
        own = frozenset(text for text, count in found.items() if count == 1)
        return cls(name, frozenset(_key(name, task.id) for task in tasks), own)

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
                f"tasks are not on unseen tasks. {_REMEDY}"
            )

    def note_texts(self, messages: Sequence[Mapping[str, Any]], notes: Notes) -> None:
        """Note a conversation in which a user's message has text that only a held-out task has."""
        starts = {text[:_SURE] for text in self.texts}
        for message in messages:
            said = words_of(text_of(message.get("content"))) if message["role"] == "user" else ""
            if any(
                said[at : at + _SURE] in starts and any(said.startswith(t, at) for t in self.texts)
                for at in range(len(said) - _SURE + 1)
            ):
                notes.add(
                    "row with the text of a task that this run evaluates, learned: the model is "
                    "not measured by it any more"
                )
                return


def _texts(value: Any) -> Iterator[str]:
    """Yield the words of the longer texts in the data of a task."""
    if isinstance(value, str):
        text = words_of(value)
        if len(text) >= _SURE:
            yield text
    elif is_mapping(value):
        for each in value.values():
            yield from _texts(each)
    elif is_list(value):
        for each in value:
            yield from _texts(each)


def _name(env: str) -> str:
    return _VERSION.sub("", env)


def _key(env: str, id: str) -> tuple[str, str]:
    """Return environment and id; a mix names its member in front of the id."""
    member, slash, rest = id.partition("/")
    mixed = slash and (env.startswith("mix") or _name(member) == env)
    return (_name(member), rest) if mixed else (env, id)
