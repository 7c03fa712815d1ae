"""What a training run came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .eval_result import EvalResult
from .pace import SandboxPace, VerifierPace


@dataclass(frozen=True, slots=True)
class BestCheckpoint:
    """The best one by `trainer.best_metric` of those that stayed."""

    checkpoint: str
    version: int
    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a training run came to; the JSON object of `arl train --json`."""

    eval_before: float | None
    eval_after: float | None
    evaluations: Sequence[Mapping[str, object]]
    """All of them, as in `evaluations.jsonl`, by version."""
    best: BestCheckpoint | None
    """None unless trainer.keep_best asks for such."""
    steps: int
    """In all, those before a resume included; so are staleness and dropped groups."""
    batches_taught: int
    """Those of them that had a gradient and a learning rate above 0: the others left the policy as
    it was."""
    resumed_from: int | None
    """Batches that the checkpoint had from which the run went on; None: it was not resumed."""
    staleness_mean: float
    staleness_max: float
    groups_dropped: Mapping[str, int]
    overlap: float
    tool_calls_after: float | None
    envs: Mapping[str, Mapping[str, float | None]]
    """Held-out reward of each environment, "before" and "after"."""
    outcomes: Mapping[str, int]
    """Training episodes by outcome."""
    eval_outcomes: Mapping[str, int]
    """Episodes of both evaluations by outcome; those not completed or truncated do not count
    in the rewards."""
    engines: Mapping[str, int]
    """What happened to engines and turns: restarts, and the router's counters."""
    trainer_restarts: int
    """Times lost ranks were started again, since the run began or was resumed."""
    worker_restarts: int
    """Times lost rollout workers were started again, likewise."""
    duration_s: float
    run: str
    episodes: int
    """Of training and all evaluations, played to a record; the figures below are over them."""
    episodes_per_s: float
    loop_lag_ms: Mapping[str, float]
    sandbox: SandboxPace | None
    verifier: VerifierPace | None
    """See pace.Pace."""


def rewards_by_env(
    before: EvalResult | None, after: EvalResult | None
) -> dict[str, dict[str, float | None]]:
    """Of each environment, where both or one of the evaluations has it."""
    found = {when: result.envs for when, result in (("before", before), ("after", after)) if result}
    ids = sorted({env_id for envs in found.values() for env_id in envs})
    return {
        env_id: {
            when: envs[env_id].reward if env_id in (envs := found.get(when, {})) else None
            for when in ("before", "after")
        }
        for env_id in ids
    }
