"""The schedule of checkpoints and evaluations: every so many steps, every so many minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from agentgym_rl.config import EvalConfig, TrainerConfig

_SECONDS = 60.0


class Schedule:
    """A schedule that is due every `every` batches (0: never) and every `every_minutes` (0: never),
    which count from its construction and from each time that it was due."""

    def __init__(
        self, every: int, every_minutes: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every = every
        self._every_s = every_minutes * _SECONDS
        self._clock = clock
        self._last_s = clock()

    def due(self, done: int) -> bool:
        """Return whether the schedule is due with `done` batches trained; if so, restart the
        minutes."""
        now = self._clock()
        by_time = self._every_s > 0 and now - self._last_s >= self._every_s
        if is_due := by_time or self.counts(done):
            self._last_s = now
        return is_due

    def counts(self, done: int) -> bool:
        """Return whether the schedule is due with `done` batches trained, whatever the time."""
        return self._every > 0 and done % self._every == 0


@dataclass(frozen=True, slots=True)
class Due:
    """The actions that follow a batch."""

    checkpoint: bool
    evaluation: bool


class Plan:
    """The two schedules of a run. The last batch is evaluated and saved anyway."""

    def __init__(
        self,
        trainer: TrainerConfig,
        evaluation: EvalConfig,
        *,
        steps: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._checkpoints = Schedule(
            trainer.checkpoint_every, trainer.checkpoint_every_minutes, clock=clock
        )
        self._evaluations = Schedule(evaluation.every, evaluation.every_minutes, clock=clock)
        self.steps = steps
        self._saves_evaluated = trainer.keeps_best_evaluated
        self._newest = (0, Due(checkpoint=False, evaluation=False))
        """The actions after the newest batch, by the number of batches."""

    def after(self, done: int, *, owed: bool = False, again: bool = False) -> Due:
        """Return the actions due with `done` batches trained, the same at each call. Call it for
        new batches in order.

        `owed`: an evaluation of that version is still missing because of a crash. `again`: the last
        of these batches was recorded, and trains again, without what was done by time.
        """
        is_last = done >= self.steps
        if again:
            return Due(checkpoint=is_last or self._checkpoints.counts(done), evaluation=False)
        if done != self._newest[0]:
            saved, evaluated = self._checkpoints.due(done), self._evaluations.due(done) or owed
            saved = is_last or saved or (evaluated and self._saves_evaluated)
            self._newest = done, Due(checkpoint=saved, evaluation=evaluated and not is_last)
        return self._newest[1]
