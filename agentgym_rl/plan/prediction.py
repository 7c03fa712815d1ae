"""What comes out of a simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .trainer import Step


@dataclass(frozen=True, slots=True)
class Prediction:
    """Means over the batches after the first ones (`skipped`), in which a run gets going."""

    episodes_per_s: float
    """Trained ones."""
    trained_tokens_per_s: float
    generated_tokens_per_s: float
    step_s: float
    """From one report to the next."""
    staleness_mean: float
    """Of the groups of a batch, in versions."""
    staleness_max: float
    """Over the whole run."""
    dropped_groups: int
    """As too old, over the whole run."""
    versions_per_episode: float
    trainer_idle: float
    """Share of the time in which the trainer waited for a batch."""
    engine_idle: float
    """Share of the time in which an engine had nothing to sample."""
    engine_prefill: float
    engine_paused: float
    """Shares of prefills and of pauses for new weights."""
    requests_per_engine: float
    """Sampled together, on average."""
    rollout_busy: float
    """Share of the time in which the rollout's process computed."""
    overlap: float
    """Share of tokens sampled while the trainer computed."""
    turn_s: float
    """From the last token of a turn to the last one of the next, over the whole run; 0 where
    episodes have one turn."""
    compute_s: float
    """Of a batch, in which the trainer computed."""
    weight_sync_s: float
    micro_batches: float
    """Of one rank and batch, all passes together."""
    preemptions: int
    max_concurrent: float
    """Groups played at once, at most; on average where that is adapted."""
    skipped: int
    steps: Sequence[Step] = field(repr=False, default=())
    notes: Sequence[str] = ()
    """What of the configuration such a run would run into."""

    def numbers(self) -> Mapping[str, float]:
        """All numbers by name."""
        return {
            name: getattr(self, name) for name in self.__slots__ if name not in ("steps", "notes")
        }
