"""The result of a training run that has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentgym_rl.config import TrainerConfig
from agentgym_rl.controller import Controller
from agentgym_rl.controller.batches import taught
from agentgym_rl.evaluate import EvalResult, Result
from agentgym_rl.fleet import Fleet
from agentgym_rl.rollout import FinishedGroups, Pace, SandboxPace, VerifierPace
from agentgym_rl.storage import EvalRecord, Recovered, Retention, best_checkpoint
from agentgym_rl.storage.run_folder import shown


@dataclass(frozen=True, slots=True)
class BestCheckpoint:
    """The best of the kept checkpoints, by `trainer.best_metric`."""

    checkpoint: str
    version: int
    metric: str
    value: float


@dataclass(frozen=True, slots=True, repr=False)
class TrainResult(Result):
    """The result of a training run; the JSON object of `arl train --json`."""

    state: Literal["finished", "stopped"]
    """Whether all batches are trained, or a callback has stopped the run before."""
    eval_before: float | None
    eval_after: float | None
    evaluations: Sequence[Mapping[str, object]]
    """The list of all evaluations, as in `evaluations.jsonl`, by version."""
    best: BestCheckpoint | None
    """The best checkpoint; None unless trainer.keep_best is set."""
    steps: int
    """The number of trained batches, those before a resume included; staleness and dropped groups
    include them, too."""
    batches_taught: int
    """The number of batches with a gradient and a learning rate above 0: all others left the policy
    unchanged."""
    resumed_from: int | None
    """The number of batches in the checkpoint that the run was resumed from; None: not resumed."""
    staleness_mean: float
    staleness_max: float
    groups_dropped: Mapping[str, int]
    overlap: float
    tool_calls_after: float | None
    envs: Mapping[str, Mapping[str, float | None]]
    """The held-out reward of each environment, "before" and "after"."""
    outcomes: Mapping[str, int]
    """The number of training episodes with each outcome."""
    judges: Mapping[str, float]
    """The calls, tokens and cost in USD of judges (`groups.COSTS`) for the training episodes, since
    the run began or was resumed; those without a value are left out."""
    eval_outcomes: Mapping[str, int]
    """The number of episodes of both evaluations with each outcome; those not completed or
    truncated do not count in the rewards."""
    engines: Mapping[str, int]
    """The counters of engines and turns: restarts, and the router's counters."""
    trainer_restarts: int
    """The number of restarts of lost ranks, since the run began or was resumed."""
    worker_restarts: int
    """The number of restarts of lost rollout workers, since the run began or was resumed."""
    duration_s: float
    run: str
    num_episodes: int
    """The number of recorded episodes, of training and all evaluations, since the run began or was
    resumed; the fields below, and `duration_s`, cover these."""
    episodes_per_s: float
    loop_lag_ms: Mapping[str, float]
    sandbox: SandboxPace | None
    verifier: VerifierPace | None
    """The pace of the verifier; see throughput.Pace for this and the fields above."""


def rewards_by_env(
    before: EvalResult | None, after: EvalResult | None
) -> dict[str, dict[str, float | None]]:
    """Return the rewards of each environment that at least one of the evaluations has."""
    found = {when: result.envs for when, result in (("before", before), ("after", after)) if result}
    ids = sorted({env_id for envs in found.values() for env_id in envs})
    return {
        env_id: {
            when: envs[env_id].reward if env_id in (envs := found.get(when, {})) else None
            for when in ("before", "after")
        }
        for env_id in ids
    }


@dataclass(frozen=True, slots=True)
class Played:
    """The results of the groups of a run, and of the evaluations before and after them."""

    finished: FinishedGroups
    pace: Pace
    before: EvalResult | None = None
    after: EvalResult | None = None
    worker_restarts: int = 0
    """The number of restarts of lost rollout workers."""


def summarize_training(
    trainer: TrainerConfig,
    run_dir: Path,
    controller: Controller,
    fleet: Fleet,
    recovered: Recovered,
    records: Mapping[int, EvalRecord],
    played: Played,
    *,
    trainer_restarts: int,
    duration_s: float,
) -> TrainResult:
    """Return the result of a run that has ended well; `records` are its evaluations, by version."""
    before, after, pace = played.before, played.after, played.pace
    history = controller.history
    return TrainResult(
        state="stopped" if controller.stopped else "finished",
        eval_before=before.reward if before else None,
        eval_after=after.reward if after else None,
        evaluations=[record.line() for record in records.values()],
        best=_best(trainer, run_dir),
        steps=len(history),
        batches_taught=sum(map(taught, history)),
        resumed_from=recovered.step if recovered.incarnation else None,
        staleness_mean=sum(m["staleness/mean"] for m in history) / len(history),
        staleness_max=max(m["staleness/max"] for m in history),
        groups_dropped=dict(controller.buffer.dropped),
        overlap=controller.overlap.share,
        tool_calls_after=after.tool_calls if after else None,
        envs=rewards_by_env(before, after),
        outcomes=dict(played.finished.outcomes),
        judges=played.finished.costs,
        eval_outcomes=_outcomes(before, after),
        trainer_restarts=trainer_restarts,
        worker_restarts=played.worker_restarts,
        engines={"restarts": fleet.restarts, **fleet.counters},
        duration_s=duration_s,
        run=shown(run_dir),
        num_episodes=pace.episodes,
        episodes_per_s=pace.episodes_per_s,
        loop_lag_ms=pace.loop_lag_ms,
        sandbox=pace.sandbox,
        verifier=pace.verifier,
    )


def _best(trainer: TrainerConfig, run_dir: Path) -> BestCheckpoint | None:
    """Return the best kept checkpoint, if the best ones are kept."""
    if not trainer.keep_best:
        return None
    best = best_checkpoint(run_dir / "checkpoints", Retention.of(trainer))
    return best and BestCheckpoint(shown(best.checkpoint), best.version, best.metric, best.value)


def _outcomes(*evaluations: EvalResult | None) -> dict[str, int]:
    """Return the number of episodes with each outcome, over all evaluations."""
    return dict(sum((Counter(each.outcomes) for each in evaluations if each), Counter[str]()))
