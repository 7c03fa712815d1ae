"""The keys of optional parts of the objective, and of the curriculum."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

from pydantic import Field, field_validator, model_validator

from agentgym_rl.core import (
    LossKind,
    Needs,
    ObjectiveKeys,
    PlayKeys,
    Section,
    is_function_path,
    is_list,
    is_mapping,
    is_tuple,
    is_url,
    none_of,
    one_of,
)
from agentgym_rl.core.added_keys import TaskWatch

if TYPE_CHECKING:  # the configuration is made of these keys
    from agentgym_rl.config import AlgoConfig, Config

log = logging.getLogger(__name__)

CURRICULA = ("", "task", "level", "env")
"""The values of `rollout.curriculum`, other than `module:Class`."""
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
    def frozen_models(self) -> list[str]:
        own = [one.model for one in self.teacher.models if not one.is_served]
        return super().frozen_models + own

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


class CriticConfig(Section):
    """The section `algo.critic`: a value model, which learns the return of each token
    (`algo.baseline` "critic")."""

    discount: float = Field(default=1.0, ge=0, le=1)
    """The discount γ from one trained token to the next."""
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    """The λ of GAE: 1 uses a token's actual return, 0 only the value of the next token."""
    length_alpha: float | None = Field(default=None, gt=0)
    """The α of a λ that adapts to the l trained tokens of a row, 1 − 1/(α·l), in place of
    `gae_lambda` (VAPO); None: off."""
    return_lambda: float | None = Field(default=None, ge=0, le=1)
    """The λ of the returns that the critic learns; None: that of the advantages."""
    bootstrap_truncated: bool = False
    """The switch to add γ·V of the state after its last trained token to the reward of a truncated
    episode, whose future was cut off."""
    value_clip: float | None = Field(default=None, gt=0)
    """The limit on a batch's change of a value, in units of shaped reward; None: no limit."""
    warmup_steps: int = Field(default=0, ge=0)
    """The number of initial training batches that train only the critic."""

    @model_validator(mode="after")
    def _consistent(self) -> CriticConfig:
        if self.length_alpha is not None and self.gae_lambda != 1.0:
            raise ValueError(
                f"length_alpha {self.length_alpha} replaces gae_lambda {self.gae_lambda}: leave "
                "one of them out"
            )
        return self


class CriticKeys(ObjectiveKeys):
    """The section `algo.critic`, added to `algo`."""

    after = "reward"
    needs: ClassVar[Sequence[Needs]] = (
        Needs("critic", "baseline", "'critic'", one_of("critic")),
        # A critic's batch_std is one of advantages, and no deviation of rewards.
        Needs("std", "baseline", "no critic", none_of("critic")),
    )

    critic: CriticConfig = CriticConfig()

    @model_validator(mode="after")
    def _fits_a_critic(self) -> Self:
        algo = cast("AlgoConfig", self)
        if algo.baseline != "critic":
            return self
        if algo.scale not in ("none", "batch_std"):
            raise ValueError(
                f"baseline 'critic' with scale {algo.scale!r} has no meaning: a critic judges "
                "tokens, not episodes of a group; use batch_std or none"
            )
        if algo.shuffle_advantages:
            raise ValueError(
                "shuffle_advantages permutes advantages of episodes; baseline 'critic' gives "
                "every token its own: use another baseline for the negative control"
            )
        if algo.whiten.over == "episodes" or (algo.whiten.over != "none" and algo.scale != "none"):
            raise ValueError(
                f"baseline 'critic' with whiten.over {algo.whiten.over!r} and scale "
                f"{algo.scale!r}: its advantages are those of tokens; use tokens with scale none"
            )
        if algo.reward.parts:
            raise ValueError("baseline 'critic' learns one return: leave reward.parts out")
        if algo.kl.placement == "token":
            raise ValueError("baseline 'critic' sums rewards itself: use kl.placement reward")
        if not algo.reward_factor:
            raise ValueError(
                "baseline 'critic' does nothing with teacher.reward_coef 0, which leaves out the "
                "environment's rewards: use another baseline, or raise teacher.reward_coef"
            )
        return self

    def trains_policy(self, step: int) -> bool:
        algo = cast("AlgoConfig", self)
        warms_up = algo.baseline == "critic" and step < self.critic.warmup_steps
        return not warms_up and super().trains_policy(step)

    def conflicts(self, config: Config) -> Iterator[str]:
        if self.critic.warmup_steps >= config.steps:
            yield (
                f"algo.critic.warmup_steps {self.critic.warmup_steps} leaves none of the "
                f"{config.steps} batches to the policy: raise steps, or lower it"
            )


class CriticRateKeys(Section):
    """The key `trainer.critic_learning_rate`, added to `trainer`."""

    after = "learning_rate"

    critic_learning_rate: float | None = Field(default=None, ge=0)
    """The peak learning rate of the critic, on the same schedule (default: `learning_rate`)."""

    def conflicts(self, config: Config) -> Iterator[str]:
        rate, baseline = self.critic_learning_rate, config.algo.baseline
        if rate is not None and baseline != "critic":
            yield (
                f"trainer.critic_learning_rate {rate} without a "
                f"critic: algo.baseline is {baseline!r}; leave it out, or use baseline critic"
            )


class CovarianceConfig(Section):
    """The section `algo.covariance`: the tokens whose (A − mean A) · (log p − mean log p) over the
    batch is large, which make the policy's entropy collapse (arXiv:2505.22617)."""

    needs: ClassVar[Sequence[Needs]] = (
        Needs("share", "rule", "'clip' or 'kl'", one_of("clip", "kl")),
        Needs("low", "rule", "'clip'", one_of("clip")),
        Needs("high", "rule", "'clip'", one_of("clip")),
        Needs("coef", "rule", "'kl'", one_of("kl")),
    )

    rule: Literal["none", "clip", "kl"] = "none"
    """The rule. clip: random tokens with a covariance in (low, high) have no gradient; kl: the
    tokens with the largest covariance cost coef · |log u|, where u is their ratio."""
    share: float = Field(default=2e-4, gt=0, le=1)
    """The share of the batch's tokens that are chosen, at least one."""
    low: float = 1.0
    """The lower bound on a covariance, for the rule clip."""
    high: float = 5.0
    """The upper bound on a covariance, for the rule clip."""
    coef: float = Field(default=1.0, gt=0)
    """The cost of one nat, for the rule kl."""

    @model_validator(mode="after")
    def _consistent(self) -> CovarianceConfig:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        return self


class CovarianceKeys(ObjectiveKeys):
    """The section `algo.covariance`, added to `algo`."""

    after = "whiten"

    covariance: CovarianceConfig = CovarianceConfig()

    @property
    def terms(self) -> dict[str, Section]:
        on: dict[str, Section] = {"covariance": self.covariance}
        return super().terms | (on if self.covariance.rule != "none" else {})

    @property
    def uses_every_row(self) -> bool:
        return self.covariance.rule == "kl" or super().uses_every_row

    @property
    def needs_batch(self) -> bool:
        return self.covariance.rule != "none" or super().needs_batch


class SapoConfig(Section):
    """The section `algo.sapo`: the temperatures of SAPO's gate."""

    tau_good: float = Field(default=1.0, gt=0)
    """The temperature of tokens with an advantage above 0."""
    tau_bad: float = Field(default=1.05, gt=0)
    """The temperature of the others: a higher one makes the gate narrower."""


class VespoConfig(Section):
    """The section `algo.vespo`: the weight of a row, exp(λ + k·log w − λ·w)."""

    k_good: float = Field(default=2.0, ge=0)
    """The k where the advantage is 0 or more."""
    lambda_good: float = Field(default=3.0, gt=0)
    """The λ where the advantage is 0 or more."""
    k_bad: float = Field(default=3.0, ge=0)
    """The k where the advantage is negative."""
    lambda_bad: float = Field(default=2.0, gt=0)
    """The λ where the advantage is negative."""


class LossKeys(ObjectiveKeys):
    """The keys of single losses, added to `algo`."""

    after = "whiten"
    needs: ClassVar[Sequence[Needs]] = (
        Needs("sapo", "loss", "'sapo'", one_of("sapo")),
        Needs("vespo", "loss", "'vespo'", one_of("vespo")),
    )

    sapo: SapoConfig = SapoConfig()
    vespo: VespoConfig = VespoConfig()


class DistanceKeys(ObjectiveKeys):
    """The keys of losses that bound a distance from the anchor, added to `algo`."""

    after = "behavior_clip"
    needs: ClassVar[Sequence[Needs]] = (
        Needs("dro_beta", "loss", "'dro'", one_of("dro")),
        Needs("divergence_limit", "loss", "'dppo'", one_of("dppo")),
    )

    divergence_limit: float = Field(default=0.2, gt=0, le=1)
    """The δ of dppo: the maximum distance of a token's probability from the behavior policy's."""
    dro_beta: float = Field(default=0.1, gt=0)
    """The β of dro: the cost of ½(log u)²."""


_CLIPS = ("clip_low", "clip_high")
CISPO = LossKind(function="arl_objectives.losses:cispo", keys=_CLIPS, takes_ratio=True, order=20)
SAPO = LossKind(function="arl_objectives.losses:sapo", takes_ratio=True, order=30)
GMPO = LossKind(function="arl_objectives.losses:gmpo", keys=_CLIPS, order=40)
VESPO = LossKind(function="arl_objectives.losses:vespo", order=50)
DRO = LossKind(function="arl_objectives.losses:dro", order=70)
DPPO = LossKind(function="arl_objectives.losses:dppo", order=80)


class CurriculumKeys(PlayKeys):
    """The keys `rollout.curriculum` and `rollout.curriculum_options`, added to `rollout`."""

    after = "max_retries"

    curriculum: str = ""
    """The choice among the tasks by measured rewards. "task", "level" or "env" (a member of a mix):
    the unit of a pass rate, and tasks near a rate of one half are preferred; or a strategy of your
    own, `module:Class`. Empty: every task."""
    curriculum_options: dict[str, Any] = Field(default_factory=dict)
    """The keyword arguments of that class; aim, floor, window, low and high of the built-in one."""

    @field_validator("curriculum")
    @classmethod
    def _known_curriculum(cls, name: str) -> str:
        if name not in CURRICULA and not is_function_path(name):
            known = ", ".join(CURRICULA[1:])
            raise ValueError(f"expected {known}, a class as module:Class, or nothing at all")
        return name

    @model_validator(mode="after")
    def _options_of_a_curriculum(self) -> Self:
        if self.curriculum_options and not self.curriculum:
            raise ValueError(
                f"curriculum_options {self.curriculum_options} without a curriculum: leave them "
                "out, or set curriculum"
            )
        return self

    def refused_for_clients(self) -> Iterator[str]:
        yield from super().refused_for_clients()
        if self.curriculum:
            yield (
                "rollout.curriculum: in `arl serve` other programs choose their tasks; leave the "
                "key out"
            )

    def not_simulated(self) -> Iterator[tuple[str, str]]:
        yield from super().not_simulated()
        if self.curriculum:
            yield "rollout.curriculum", "all tasks are drawn alike"
