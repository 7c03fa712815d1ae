"""The sections of the play of episodes: environment, agent, sandbox, `rollout`, and `eval`, the
held-out evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from agentgym_rl.core import (
    Anytime,
    EvalKeys,
    Fitted,
    InEval,
    OnResume,
    PlayKeys,
    Section,
    Sections,
    is_mapping,
    path_of,
    table_of,
    with_added_keys,
)

from .algo import AlgoConfig
from .trainer import TrainerConfig, WeightsConfig


class EnvConfig(Section):
    """The environment."""

    short = "id"

    id: str = "math"
    """The registered id, or module:Class."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The keyword arguments of `make`: the environment's own (`--env.options.level=2`), and those
    that every environment has: max_turns, wrappers, max_attempts, feedback, retry_discount and
    success_reward (`EnvSpec` explains them)."""

    @model_validator(mode="before")
    @classmethod
    def _reward_function(cls, values: Any) -> Any:
        """Convert a function given as id to an environment that rewards replies with it
        (docs/python.md)."""
        values = table_of(values, cls.short)
        if is_mapping(values) and isinstance(found := values.get("id"), FunctionType):
            return {**values, "id": f"reward:{path_of(found)}"}
        return values


class AgentConfig(Section):
    """The agent."""

    short = "id"

    id: str = "react"
    """The registered id, or module:Class."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The keyword arguments of the agent (`--agent.options.max_turns=3`)."""


class SandboxConfig(Section):
    """The sandbox for programs that agents or environments run."""

    short = "id"

    id: str = "local"
    """The registered id (local, docker, e2b), or module:Class."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The keyword arguments of the backend (`--sandbox.options.slots=16`)."""


@with_added_keys("rollout")
class RolloutConfig(PlayKeys):
    """The play and admission of episodes. B = `groups_per_batch`; counts are groups."""

    groups_per_batch: int = Field(default=8, ge=1)
    """The number B of groups (tasks) in a training batch."""
    group_size: int = Field(default=8, ge=1)
    """The number of episodes of each task, compared with each other; 1 needs an `algo` that
    compares over the batch."""
    max_staleness: int = Field(default=2, ge=0)
    """The bound η: a batch trains no token older than η policy versions; 0 is synchronous."""
    lookahead: int | None = Field(default=None, ge=0)
    """The target of staleness (η_target ≤ η): groups are admitted for this many versions ahead of
    the trainer (default: η)."""
    stale_policy: Literal["drop", "train"] = "drop"
    """The treatment of a group older than η: dropped and counted, or trained anyway."""
    max_concurrent: OnResume[int | None] = Field(default=None, ge=1)
    """The number of concurrent groups (default 2·B); with `adaptive`, the maximum (default: the
    number that the staleness bound admits, (lookahead + 1)·B, which it never exceeds)."""
    interrupt: OnResume[Literal["keep", "recompute", "abort", "wait"]] = "keep"
    """The treatment of requests in flight at a weight update: they continue with their KV cache, or
    with a KV cache recomputed under the new weights, or are aborted and resubmitted with their
    tokens; or the update waits for them. No mode loses a sampled token or is visible to agents."""
    temperature: float = Field(default=1.0, gt=0)
    """The sampling temperature of training episodes; recorded with each token."""
    max_tokens: Fitted[int] = Field(default=48, ge=1)
    """The longest reply of one turn, in tokens."""
    episode_timeout_s: Anytime[float | None] = Field(default=None, gt=0)
    """The time limit of an episode; a longer one is dropped, not scored. Unset: no limit, as long
    as the episode makes progress."""
    idle_timeout_s: Anytime[float] = Field(default=600.0, gt=0)
    """The longest time in which an episode neither waits for a reply nor begins or ends a step."""
    turn_timeout_s: Anytime[Fitted[float]] = Field(default=30.0, gt=0)
    """The longest time in which a reply gets no token, and its engine sends none to others either;
    a reply that alone gets none ends after 20 times that."""
    tool_timeout_s: OnResume[float | None] = Field(default=None, gt=0)
    """The time limit of `env.step` and `env.reset`; default: the environment's own limit
    (`Env.step_timeout_s`, 10 s for most)."""
    max_retries: Anytime[int] = Field(default=2, ge=0)
    """The number of times that an episode is played again after an infrastructure failure."""
    shuffle: bool = True
    """The switch to shuffle tasks of a finite source in each epoch, by `seed`; if off, the order is
    always the source's own."""
    max_input_tokens: int | None = Field(default=None, ge=1)
    """The longest first prompt, messages and tools, in tokens; longer tasks are not played, but
    dropped and counted as `too_long`."""
    group_reward: str | None = None
    """The module:function that rewards the members of a finished group together, such as a judge
    that compares them. It is called as function(task, members) and returns a number for each
    member, or a dictionary of numbers with `reward`, which is added to the member's own reward."""
    should_accept: str = "all"
    """The filter of finished groups: `all`, `mixed_rewards`, or module:function over a group's
    trajectories."""
    max_rejected: OnResume[int] = Field(default=1000, ge=1)
    """The number of groups in a row that `should_accept` may refuse, or that may be too long,
    before the run stops with an error; and the number of tasks in a row with weight 0."""

    @property
    def patience_s(self) -> float:
        """Return the time after which an episode, or a process that plays some, counts as stuck."""
        return self.episode_timeout_s or self.idle_timeout_s

    @property
    def admitted_groups(self) -> int:
        """Return the number of concurrent groups at the start of a run."""
        return self.max_concurrent or 2 * self.groups_per_batch

    @property
    def most_groups(self) -> int:
        """Return the maximum number of concurrent groups."""
        return self.admitted_groups

    @property
    def target_staleness(self) -> int:
        """Return `lookahead`, or its default η."""
        return self.max_staleness if self.lookahead is None else self.lookahead

    @model_validator(mode="after")
    def _consistent(self) -> RolloutConfig:
        if self.target_staleness > self.max_staleness:
            raise ValueError(
                f"lookahead {self.lookahead} exceeds max_staleness {self.max_staleness}"
            )
        if self.group_reward is not None and not all(self.group_reward.partition(":")):
            raise ValueError(f"group_reward {self.group_reward!r}: expected module:function")
        return self

    def conflicts(self, config: Sections) -> Iterator[str]:
        algo = config.of(AlgoConfig)
        if self.group_size == 1 and algo.in_group and algo.reward_factor:
            yield (
                f"rollout.group_size 1 with algo.baseline {algo.baseline!r} and algo.scale "
                f"{algo.scale!r} trains nothing: an episode alone in its group has "
                "advantage 0; use group_size 2 or more, or baseline batch_mean with scale "
                "batch_std or none (or a teacher alone: algo.teacher.reward_coef 0)"
            )


@with_added_keys("eval")
class EvalConfig(EvalKeys):
    """The held-out evaluation of `arl eval` and of a run: before the first batch and after the last
    on the run's own engines, and on schedule on an additional one."""

    num_tasks: Fitted[int] = Field(default=1024, ge=0)
    """The number of held-out tasks; 0 skips evaluation."""
    every: InEval[int] = Field(default=0, ge=0)
    """The steps between evaluations during training, each of one version; 0: none by steps."""
    every_minutes: InEval[float] = Field(default=0.0, ge=0)
    """The minutes between evaluations, each after the next step; 0: none by time."""
    temperature: float = Field(default=1.0, ge=0)
    """The sampling temperature; 0 is greedy."""
    max_concurrent: InEval[Fitted[int]] = Field(default=128, ge=1)
    """The maximum number of concurrent episodes."""
    split: Literal["eval", "train"] = "eval"
    """The split of the tasks; `train`: `arl eval` plays training tasks, to export its episodes."""
    seed: int = 0
    """The seed of the held-out tasks (the same for every run, so that runs compare)."""
    samples_per_task: int = Field(default=1, ge=1)
    """The number n of episodes of each task."""
    pass_at: InEval[tuple[int, ...]] = ()
    """The k of pass@k, each at most n (`--eval.pass_at=1,8`); empty: the powers of two up to n."""
    success_reward: InEval[float] = 1.0
    """The lowest reward of a success, for pass@k."""

    def conflicts(self, config: Sections) -> Iterator[str]:
        trainer, weights = config.of(TrainerConfig), config.of(WeightsConfig)
        if trainer.keeps_best_evaluated and not self.num_tasks:
            yield (
                f"trainer.best_metric {trainer.best_metric!r} needs evaluations, and "
                "eval.num_tasks is 0"
            )
        if self.scheduled and not weights.leaves_files:
            yield (
                "eval.every and eval.every_minutes need weights.transport 'shm', which keeps the "
                f"version to evaluate as a file; got {weights.transport!r}. Evaluate "
                "checkpoints instead: trainer.checkpoint_every, and arl eval --checkpoint"
            )

    @property
    def scheduled(self) -> bool:
        """Return whether there are evaluations while a run trains."""
        return self.every > 0 or self.every_minutes > 0

    @property
    def ks(self) -> tuple[int, ...]:
        """Return `pass_at`, or its default."""
        n = self.samples_per_task
        return self.pass_at or tuple(1 << i for i in range(n.bit_length()))

    @field_validator("pass_at", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        """Convert `--eval.pass_at=1,8` and `--eval.pass_at=8` into lists."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return (value,) if isinstance(value, int) else value

    @model_validator(mode="after")
    def _consistent(self) -> EvalConfig:
        n = self.samples_per_task
        if self.scheduled and not self.num_tasks:
            raise ValueError(
                "every and every_minutes ask for evaluations, and num_tasks is 0; set num_tasks, "
                "or leave them at 0"
            )
        if any(not 1 <= k <= n for k in self.pass_at):
            raise ValueError(
                f"pass_at {list(self.pass_at)} has a k outside 1..samples_per_task ({n}): pass@k "
                "needs at least k episodes of each task; raise samples_per_task"
            )
        if len(set(self.pass_at)) < len(self.pass_at):
            raise ValueError(f"pass_at names a k twice: {list(self.pass_at)}")
        return self
