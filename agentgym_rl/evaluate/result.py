"""The result of an evaluation: means over its episodes, pass@k, tokens and their cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from agentgym_rl.config import EvalConfig
from agentgym_rl.core import (
    ConfigError,
    InfraError,
    Outcome,
    TooManyErrors,
    Trajectory,
    extension_names,
    load_extension,
)
from agentgym_rl.core.group import by_env
from agentgym_rl.evaluate import statistics

from .statistics import Estimate

_MOST_FAILED = 0.2
"""The share of failed episodes above which the evaluation fails."""
DURATION = "duration_s"
"""The metric that an evaluation adds to its episodes: the seconds of each, with its retries."""


RESULTS = "results"
"""The group of the attributes that packages add to results: each member is a function of a result,
and its name that of the attribute."""


class Result:
    """The result of a run or an evaluation."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in extension_names(RESULTS):
            said = f"{type(self).__name__!r} has no attribute {name!r}"
            if not name.startswith("_"):  # dir() itself looks for some that do
                said += f"; it has {', '.join(it for it in dir(self) if not it.startswith('_'))}"
            raise AttributeError(said)
        return load_extension(RESULTS, name)(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.line if 'line' in dir(self) else ''})"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *extension_names(RESULTS)]


@dataclass(frozen=True, slots=True)
class EnvResult:
    """The part of an evaluation that one environment played."""

    reward: float
    num_tasks: int


@dataclass(frozen=True, slots=True, repr=False)
class EvalResult(Result):
    """The means over the episodes that were played to their end (of `num_tasks` tasks)."""

    reward: float
    reward_ci: tuple[float, float] | None
    """The 95 % confidence interval; see `statistics.mean`."""
    num_tasks: int
    num_episodes: int
    pass_at: dict[str, Estimate]
    """The pass@k by k."""
    turns: float
    tool_calls: float
    outcomes: dict[str, int]
    versions: tuple[int, ...]
    """The policy versions that replied."""
    duration_s: float
    resumed: int
    """The number of episodes that an earlier command had played."""
    prompt_tokens: int
    """The prompt tokens of all turns of all episodes, counting the complete prompt of each turn;
    failed attempts do not count."""
    cached_tokens: int | None
    """The prompt tokens from a cache; None: the endpoint did not report them."""
    completion_tokens: int
    uncounted_turns: int
    """The turns whose tokens an external endpoint did not count."""
    cost_usd: float | None
    """The cost of these tokens; None: the price is not known."""
    cut_turns: int
    """The replies cut by rollout.max_tokens or the context length."""
    filtered_turns: int
    """The replies that a content filter of an external endpoint withheld."""
    empty_turns: int
    """The replies of an external endpoint without text and calls."""
    text_calls: int
    """The replies of an external endpoint with a tool call in their text, which is not parsed."""
    outgrown: int
    """The episodes whose conversation outgrew the context length after their first turn; they
    count with their reward."""
    metrics: dict[str, float]
    """The metrics of environment and session: each is the mean over the episodes that have it."""
    envs: dict[str, EnvResult]
    """The results by environment, if some episode was played to its end in it."""
    rewards: dict[str, tuple[float, ...]]
    """The rewards of the episodes that were played to their end, by task (its index in the source
    and its id)."""
    name: str = ""
    """The name of the model; empty during training."""
    played: tuple[Trajectory, ...] = field(default=(), compare=False)
    """All episodes; none for the evaluations of a run, whose folder has them."""

    def report(self) -> dict[str, Any]:
        """Return the fields for JSON, without the episodes and their rewards."""
        found = asdict(replace(self, played=(), rewards={}))
        return {key: it for key, it in found.items() if key not in ("name", "played", "rewards")}


def summarize(
    finished: Sequence[Trajectory], config: EvalConfig, *, duration_s: float, resumed: int = 0
) -> EvalResult:
    """Return the result of an evaluation with the episodes `finished`, in any order.

    Raises:
        ConfigError: every first prompt is too long.
        InfraError: infrastructure kept an episode from being played.
        TooManyErrors: more than a fifth of the episodes failed, or had a reply withheld.
    """
    scored = [t for t in finished if t.outcome.trains]
    _check(finished, scored)
    rewards = _by_task(scored)
    reward = statistics.mean(rewards)
    return EvalResult(
        reward=reward.value,
        reward_ci=reward.ci,
        num_tasks=reward.num_tasks,
        num_episodes=len(scored),
        pass_at=_pass_at(rewards, config),
        turns=sum(t.num_turns for t in scored) / len(scored),
        tool_calls=sum(t.metrics.get("tool_calls", 0.0) for t in scored) / len(scored),
        outcomes=dict(Counter(t.outcome.value for t in finished)),
        versions=tuple(sorted({version for t in scored for version in _versions(t)})),
        duration_s=duration_s,
        resumed=resumed,
        prompt_tokens=_total(finished, "prompt_tokens"),
        cached_tokens=_count_if_complete(finished, "cached_tokens"),
        completion_tokens=_total(finished, "sampled_tokens"),
        uncounted_turns=_total(finished, "uncounted_turns"),
        cost_usd=_cost(finished, config),
        cut_turns=_total(finished, "length_turns"),
        filtered_turns=_total(finished, "filtered_turns"),
        empty_turns=_total(finished, "empty_turns"),
        text_calls=_total(finished, "text_calls"),
        outgrown=sum(t.metrics.get("overflows", 0.0) > 0 for t in scored),
        metrics=_means(scored),
        envs={
            env_id: EnvResult(sum(t.reward for t in its) / len(its), len({t.group_id for t in its}))
            for env_id, its in by_env(scored).items()
        },
        rewards=rewards,
        played=tuple(finished),
    )


def _check(finished: Sequence[Trajectory], scored: Sequence[Trajectory]) -> None:
    for lost in (t for t in finished if t.outcome is Outcome.INFRA_ERROR):
        raise InfraError(f"evaluation episode {lost.episode_id}: {lost.error}")
    failed = [t for t in finished if t.outcome.failed]
    if len(failed) > _MOST_FAILED * len(finished):
        last, outcome = failed[-1], failed[-1].outcome.value
        what = f"{len(failed)} of {len(finished)} evaluation episodes failed, this one: {outcome}"
        raise TooManyErrors.of(last.error, what=what, outcome=outcome, env_id=last.env_id)
    withheld = sum(t.metrics.get("filtered_turns", 0.0) > 0 for t in finished)
    if withheld > _MOST_FAILED * len(finished):
        raise TooManyErrors(
            f"in {withheld} of {len(finished)} evaluation episodes replies were withheld by a "
            "content filter of the endpoint: another endpoint or other tasks do not have it. What "
            "was withheld has no reward"
        )
    if not scored:
        raise ConfigError(
            f"no evaluation task was played: all {len(finished)} first prompts are too long, or "
            f"failed; the last one: {finished[-1].error}"
        )


def _by_task(scored: Sequence[Trajectory]) -> dict[str, tuple[float, ...]]:
    rewards: dict[str, list[float]] = {}
    for trajectory in scored:
        key = f"{trajectory.group_id} {trajectory.task_id}"
        rewards.setdefault(key, []).append(trajectory.reward)
    return {task: tuple(its) for task, its in sorted(rewards.items())}


def _pass_at(rewards: Mapping[str, Sequence[float]], config: EvalConfig) -> dict[str, Estimate]:
    found = {
        str(k): statistics.pass_at(rewards, k, success=config.success_reward) for k in config.ks
    }
    return {k: estimate for k, estimate in found.items() if estimate}


def _cost(finished: Sequence[Trajectory], config: EvalConfig) -> float | None:
    """Return the cost by the configured prices, or else as reported per episode; None if it is
    not known completely."""
    configured = config.cost_usd(
        prompt=_total(finished, "prompt_tokens"),
        cached=_count_if_complete(finished, "cached_tokens") or 0,
        completion=_total(finished, "sampled_tokens"),
    )
    if configured is None:
        return _sum_if_complete(finished, "cost_usd")
    return None if _total(finished, "uncounted_turns") else configured


def _sum_if_complete(finished: Sequence[Trajectory], metric: str) -> float | None:
    """Return the sum of `metric` over the episodes with at least one turn; None: one of them lacks
    it."""
    played = [t for t in finished if t.num_turns]
    if not played or any(metric not in t.metrics for t in played):
        return None
    return sum(t.metrics[metric] for t in played)


def _count_if_complete(finished: Sequence[Trajectory], metric: str) -> int | None:
    total = _sum_if_complete(finished, metric)
    return None if total is None else int(total)


def _means(scored: Sequence[Trajectory]) -> dict[str, float]:
    """Return the mean of each metric, over the episodes that have it."""
    values: dict[str, list[float]] = {}
    for trajectory in scored:
        for name, value in trajectory.metrics.items():
            values.setdefault(name, []).append(value)
    return {name: sum(of) / len(of) for name, of in sorted(values.items())}


def _total(finished: Sequence[Trajectory], metric: str) -> int:
    return int(sum(t.metrics.get(metric, 0.0) for t in finished))


def _versions(trajectory: Trajectory) -> set[int]:
    return {int(v) for row in trajectory.rows for v in row.policy_versions if v >= 0}
