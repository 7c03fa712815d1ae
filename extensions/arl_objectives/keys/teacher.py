"""The keys of distillation from teachers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from agentgym_rl.core import (
    Needs,
    ObjectiveKeys,
    OtherModel,
    Section,
    is_list,
    is_mapping,
    is_tuple,
    is_url,
)
from agentgym_rl.core.added_keys import TaskWatch

if TYPE_CHECKING:  # the configuration is made of these keys
    from agentgym_rl.config import Config

log = logging.getLogger(__name__)

_BATCHES_OF_A_TEACHER = 3
"""The batches after which a teacher of some tasks should have taught one."""


class TeacherModel(Section):
    """One entry of `algo.teacher.models`: a frozen model, and the tasks that it teaches."""

    model: str = Field(min_length=1)
    """The teacher: a folder or a Hugging Face id, which trainer ranks load; or the URL of a server
    of OpenAI's completions whose `echo` has log-probs (`arl engine`, vLLM, SGLang)."""
    weight: float = Field(default=1.0, gt=0)
    """The factor of this teacher's divergence."""
    only: dict[str, Any] = Field(default_factory=dict)
    """The values that `env_id`, or a field of the task's data, must have; empty: all tasks."""

    @field_validator("model")
    @classmethod
    def _url(cls, value: str) -> str:
        if value.startswith(("http://", "https://")) and not is_url(value):
            raise ValueError("expected http://host:port, or https://host")
        return value

    @property
    def is_served(self) -> bool:
        """Return whether the teacher is a server, rather than a folder."""
        return self.model.startswith(("http://", "https://"))

    def teaches(self, env_id: str, data: Mapping[str, Any]) -> bool:
        """Return whether the teacher teaches a task of this environment with these data."""
        known = {**data, "env_id": env_id}
        return all(name in known and known[name] == want for name, want in self.only.items())


class TeacherConfig(Section):
    """The section `algo.teacher`: on-policy distillation, which minimizes the divergence of the
    policy from other models on the tokens that the policy sampled."""

    models: tuple[TeacherModel, ...] = ()
    """The teachers; each may be its `model` alone. Empty: there is no distillation."""
    coef: float = Field(default=1.0, gt=0)
    """The cost of one nat of divergence from a teacher of weight 1."""
    placement: Literal["reward", "loss"] = "reward"
    """The place of the cost. reward: a reward of each token, to which the clip of the loss applies;
    loss: a term of the loss."""
    horizon: Literal["token", "row"] = "token"
    """The costs in a token's advantage. token: its own; row: also those of the later tokens of its
    row."""
    top_k: int = Field(default=0, ge=0)
    """The number of the teacher's likeliest tokens over which the loss term sums the divergence;
    all other tokens together count as one more. 0: estimated from the sampled token alone."""
    reward_coef: float = Field(default=1.0, ge=0)
    """The factor of advantages from the environment's rewards; 0: the teachers alone teach."""
    timeout_s: float = Field(default=120.0, gt=0)
    """The limit of one answer of a served teacher."""
    patience_s: float = Field(default=600.0, gt=0)
    """The time for which a failed request to a served teacher is repeated before the run ends."""

    @field_validator("models", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """Take a text for the model of a teacher of all tasks, and name a key that no teacher
        has."""
        items: Sequence[Any] = value if is_list(value) or is_tuple(value) else [value]
        known = TeacherModel.model_fields
        for name in (key for item in items if is_mapping(item) for key in item if key not in known):
            raise ValueError(f"unknown key {name}; allowed: {', '.join(known)}")
        return [{"model": item} if isinstance(item, str) else item for item in items]

    @model_validator(mode="after")
    def _consistent(self) -> TeacherConfig:
        fields = type(self).model_fields.items()
        changed = [name for name, field in fields if getattr(self, name) != field.default]
        if changed and not self.models:
            raise ValueError(
                f"{', '.join(changed)} without models does nothing: name a teacher in "
                "algo.teacher.models, or leave it out"
            )
        if self.horizon == "row" and self.placement == "loss":
            raise ValueError(
                'horizon "row" needs placement reward: the loss term of a token has its own '
                "divergence alone"
            )
        if self.top_k and self.placement == "reward":
            raise ValueError(
                f'top_k {self.top_k} needs placement "loss": a reward is paid for the sampled '
                "token, and for no other"
            )
        if self.top_k and (served := [one.model for one in self.models if one.is_served]):
            raise ValueError(
                f"top_k {self.top_k} needs teachers in folders; {served[0]} is a server, which "
                "tells the log-probs of the sampled tokens: use 0"
            )
        waits = [name for name in changed if name in ("timeout_s", "patience_s")]
        if waits and not any(one.is_served for one in self.models):
            raise ValueError(
                f"{', '.join(waits)} without a served teacher does nothing, and none of the models "
                "is a URL: leave it out"
            )
        return self

    def weights(self, env_id: str, data: Mapping[str, Any]) -> list[float]:
        """Return the weight of each teacher for a task; 0 for one that does not teach it."""
        return [one.weight * one.teaches(env_id, data) for one in self.models]


class TeacherKeys(ObjectiveKeys):
    """The section `algo.teacher`, added to `algo`."""

    after = "kl"
    needs: ClassVar[Sequence[Needs]] = tuple(
        Needs(key, "teacher.reward_coef", "above 0")
        for key in ("reward", "std", "whiten", "turn_discount", "shuffle_advantages")
    )

    teacher: TeacherConfig = TeacherConfig()

    @property
    def terms(self) -> dict[str, Section]:
        on: dict[str, Section] = {"teacher": self.teacher} if self.teacher.models else {}
        return super().terms | on

    @property
    def needs_batch(self) -> bool:
        taught = bool(self.teacher.models) and self.teacher.placement == "reward"
        return taught or super().needs_batch

    @property
    def reward_factor(self) -> float:
        return self.teacher.reward_coef * super().reward_factor

    @property
    def other_models(self) -> list[OtherModel]:
        loaded = [one.model for one in self.teacher.models if not one.is_served]
        own = [OtherModel(model=it, role="teacher", title="the teacher") for it in loaded]
        return super().other_models + own

    def of_task(self, env_id: str, data: Mapping[str, Any]) -> dict[str, list[float]]:
        found = super().of_task(env_id, data)
        if self.teacher.models:
            found["teacher"] = self.teacher.weights(env_id, data)
        return found

    def watches(self) -> list[TaskWatch]:
        return [*super().watches(), _IdleTeachers(self.teacher.models)]

    def located(self, folder_of: Callable[[str], str], *, env_id: str) -> Self:
        models = tuple(
            one if one.is_served else one.model_copy(update={"model": folder_of(one.model)})
            for one in self.teacher.models
        )
        found = super().located(folder_of, env_id=env_id)
        return found.model_copy(
            update={"teacher": self.teacher.model_copy(update={"models": models})}
        )

    def conflicts(self, config: Config) -> Iterator[str]:
        """Yield an error for each key that has no effect when only teachers teach, or that a served
        teacher cannot support."""
        teacher, rollout = self.teacher, config.rollout
        if not teacher.reward_coef and rollout.should_accept == "mixed_rewards":
            yield (
                "rollout.should_accept 'mixed_rewards' drops groups for rewards that do not count "
                "(algo.teacher.reward_coef 0): use all"
            )
        if not teacher.reward_coef and rollout.group_reward:
            yield (
                f"rollout.group_reward {rollout.group_reward!r} pays rewards that do not count "
                "(algo.teacher.reward_coef 0): leave it out, or raise algo.teacher.reward_coef"
            )
        served = next((one.model for one in teacher.models if one.is_served), "")
        if served and rollout.temperature != 1:
            yield (
                f"rollout.temperature {rollout.temperature} with the served teacher {served}: "
                "servers tell log-probs at temperature 1, and others cannot be computed from "
                "those; use 1, or the teacher's folder"
            )


class _IdleTeachers(TaskWatch):
    """A watch that warns once of teachers that teach no task of the first few batches."""

    def __init__(self, models: Sequence[TeacherModel]) -> None:
        self._idle = [one for one in models if one.only]
        self._batches = 0

    def batch(self, tasks: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        if not self._idle:
            return
        self._idle = [it for it in self._idle if not any(it.teaches(*task) for task in tasks)]
        self._batches += 1
        if self._batches != _BATCHES_OF_A_TEACHER:
            return
        for one in self._idle:
            log.warning(
                "the teacher %s teaches none of the tasks of the first %d batches: it is for tasks "
                "with %s (only), and one of the last batch has %.300s",
                *(one.model, self._batches, one.only),
                {"env_id": tasks[0][0], **tasks[0][1]},
            )
        self._idle = []
