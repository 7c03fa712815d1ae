"""What is said of a run when it has ended: its result, and its picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .batching import taught
from .config import Config
from .controller import Controller
from .eval_records import EvalRecord
from .eval_result import EvalResult
from .fleet import Fleet
from .groups import FinishedGroups
from .inspect.plot import plot_reward
from .pace import Pace
from .recovery import Recovered
from .run_dir import shown
from .trainer.retention import Retention, best_checkpoint
from .training_result import BestCheckpoint, TrainResult, rewards_by_env


@dataclass(frozen=True, slots=True)
class Played:
    """What became of the groups of a run, and of the evaluations around them."""

    finished: FinishedGroups
    pace: Pace
    before: EvalResult | None = None
    after: EvalResult | None = None
    worker_restarts: int = 0
    """Times that lost rollout workers were started again."""


def summarize_training(
    config: Config,
    run_dir: Path,
    controller: Controller,
    fleet: Fleet,
    recovered: Recovered,
    records: Mapping[int, EvalRecord],
    played: Played,
    *,
    title: str,
    trainer_restarts: int,
    duration_s: float,
) -> TrainResult:
    """The result of a run that has ended well; draws `reward.png` (called `title`) if asked to.

    `records` are its evaluations, by version.
    """
    before, after, pace = played.before, played.after, played.pace
    history = controller.history
    if config.logging.plot:
        rewards = {v: r.metrics.get("eval/reward") for v, r in records.items()}
        plot_reward(
            run_dir / "reward.png",
            history,
            title=title,
            evaluations={v: reward for v, reward in rewards.items() if reward is not None},
        )
    return TrainResult(
        eval_before=before.reward if before else None,
        eval_after=after.reward if after else None,
        evaluations=[record.line() for record in records.values()],
        best=_best(config, run_dir),
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
        eval_outcomes=_outcomes(before, after),
        trainer_restarts=trainer_restarts,
        worker_restarts=played.worker_restarts,
        engines={"restarts": fleet.restarts, **fleet.counters},
        duration_s=duration_s,
        run=shown(run_dir),
        episodes=pace.episodes,
        episodes_per_s=pace.episodes_per_s,
        loop_lag_ms=pace.loop_lag_ms,
        sandbox=pace.sandbox,
        verifier=pace.verifier,
    )


def _best(config: Config, run_dir: Path) -> BestCheckpoint | None:
    """The best checkpoint that stayed, where best ones were to stay."""
    if not config.trainer.keep_best:
        return None
    best = best_checkpoint(run_dir / "checkpoints", Retention.of(config.trainer))
    return best and BestCheckpoint(shown(best.checkpoint), best.version, best.metric, best.value)


def _outcomes(*evaluations: EvalResult | None) -> dict[str, int]:
    """Episodes of all of them by outcome."""
    outcomes: dict[str, int] = {}
    for result in filter(None, evaluations):
        for outcome, count in result.outcomes.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
    return outcomes
