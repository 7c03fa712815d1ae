"""The rewards of a judge, or of a reward model, that options describe in place of a function."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import ValidationError, validate_call

from agentgym_rl import ConfigError, EnvError
from agentgym_rl.gym.tool_env import text_of
from arl_envs.judge import Criterion, Judge, Panel, RewardModel
from arl_envs.judge.asking import Asking, check_rubric

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Judged:
    """A judge with its rubric, or a reward model without one."""

    by: Asking | RewardModel
    rubric: Sequence[Criterion]
    reference_field: str

    @property
    def longest_s(self) -> float:
        """Return the longest time that a verdict may take, besides the wait for its turn."""
        return self.by.longest_s

    async def score(
        self, completion: str, row: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]
    ) -> dict[str, float]:
        """Return the reward of a reply to `messages`, the prompt of `row`, with the scores of the
        criteria and the costs.

        Raises:
            InfraError: the judge cannot be reached, or gives no verdict.
            EnvError: it refuses the request, or the row has no `reference_field`.
        """
        if isinstance(self.by, RewardModel):
            reply = {"role": "assistant", "content": completion}
            return await self.by.score_messages([*messages, reply])
        reference = self._reference(row)
        return await self.by.score(
            _prompt_text(messages), completion, self.rubric, reference=reference
        )

    def _reference(self, row: Mapping[str, Any]) -> str:
        if not self.reference_field:
            return ""
        if self.reference_field not in row:
            raise EnvError(
                f"reference_field {self.reference_field!r}: the row has {', '.join(map(str, row))}"
            )
        value = row[self.reference_field]
        return "" if value is None else str(value)


def _prompt_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a prompt as text: that of its only message, or each message after its role."""
    if len(messages) == 1:
        return text_of(messages[0])
    return "\n\n".join(f"{message['role']}: {text_of(message)}" for message in messages)


def judged(judge: Any, rubric: Any, reference_field: str, reward_model: Any) -> Judged:
    """Return the judge, or the reward model, that these options describe; the same object for the
    same options, so that all episodes of a process share its limits and its warnings.

    Raises:
        ConfigError: they describe none that can work.
    """
    options = [judge, rubric, reference_field, reward_model]
    return _judged(json.dumps(options, sort_keys=True, default=str))


@lru_cache(maxsize=64)
def _judged(options: str) -> Judged:
    judge, rubric, reference_field, reward_model = json.loads(options)
    if reward_model:
        return Judged(_made(RewardModel, "reward_model", reward_model), (), "")
    one = {"name": "score", "text": rubric}
    items = [one] if isinstance(rubric, str) and rubric else rubric
    if not isinstance(items, list) or not items:
        raise ConfigError(
            f"rubric: got {rubric!r}, expected what the judge is asked: a text, or a list of "
            'tables such as {name = "right", text = "Is the answer right?", weight = 2}'
        )
    criteria = [_made(Criterion, f"rubric[{n}]", item) for n, item in enumerate(items)]
    check_rubric(criteria)
    if not isinstance(judge, list):
        return Judged(_made(Judge, "judge", judge), criteria, reference_field)
    judges = [_made(Judge, f"judge[{n}]", item) for n, item in enumerate(judge)]
    return Judged(Panel(judges), criteria, reference_field)


def _made(kind: type[Made], name: str, table: Any) -> Made:
    """Return `kind(**table)`, once the names and the types of the arguments are right."""
    known = ", ".join(inspect.signature(kind).parameters)
    if not isinstance(table, Mapping):
        raise ConfigError(f"{name}: got {table!r}, expected a table with some of: {known}")
    made = kind.__new__(kind)
    try:
        validate_call(kind.__init__)(made, **table)  # takes functions, and no classes
    except ValidationError as error:
        wrong = "; ".join(f"{name}.{_wrong(one)}" for one in error.errors())
        raise ConfigError(f"{wrong}. The keys of {name} are {known}") from error
    return made


def _wrong(error: Mapping[str, Any]) -> str:
    where = f"{'.'.join(map(str, error['loc']))}: {error['msg']}"
    return where if error["type"] == "missing_argument" else f"{where}, got {error['input']!r:.80}"
