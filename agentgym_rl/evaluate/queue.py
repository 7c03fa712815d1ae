"""The evaluations that a run owes: versions that are due, each with its weights, in order.

A version is pinned the moment it is published: a hard link beside the file that engines read, so
that pruning does not reach it. It then goes into the run's folder (on a thread, where that is
another disk) until it is evaluated: as many may wait as the disk has room for, and they outlive
the process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from agentgym_rl.config import Config
from agentgym_rl.storage.evaluations import EvalRecord, EvalRecords, Status
from agentgym_rl.storage.recovery import NOTHING, Recovered
from agentgym_rl.storage.weights_folder import version_name

log = logging.getLogger(__name__)

PINS = "evaluating"
"""Folder of pinned versions, in the run's weights folder."""
_MANY = 2
"""So many that wait are worth a warning."""


class EvalQueue:
    """What is due, what waits, and what came of it. One event loop only.

    `final`: the run evaluates its first and last version itself; here they are only recorded.
    `on_end(record)` is called with each record that has come to an end.
    """

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        weights_dir: Path,
        *,
        recovered: Recovered = NOTHING,
        final: bool = True,
        on_end: Callable[[EvalRecord], None] = lambda record: None,
    ) -> None:
        self.records = EvalRecords(run_dir)
        self._weights_dir = weights_dir
        self._incarnation = recovered.incarnation
        self._steps = config.steps
        self._scheduled = config.eval.scheduled
        self._final = final and config.eval.num_tasks > 0
        self._on_end = on_end
        self._step = recovered.step
        self._pinned: asyncio.Queue[int | None] = asyncio.Queue()
        self._ready: asyncio.Queue[int | None] = asyncio.Queue()
        self._owed: set[int] = set()
        """Versions, of those that are still to be made again, that were due before a crash."""
        self._is_resumed = recovered.incarnation > 0

    def recover(self) -> None:
        """See what a run that was killed has left. Call it once, before anything else."""
        if not self._is_resumed:
            return
        self.records.mend()
        for version, record in self.records.read().items():
            ours = self._scheduled and 0 < version < self._steps
            if version > self._step:
                if ours:
                    self._owed.add(version)
            elif record.status != "waiting" or version in (0, self._steps):
                continue
            elif ours and self.records.weights(version).exists():
                self._ready.put_nowait(version)
            elif ours and version == self._step:
                self._owed.add(version)
            else:
                self._interrupted(version)

    def _interrupted(self, version: int) -> None:
        self.end(version, "interrupted", "the run ended before it, and the weights are gone")

    # ------------------------------------------------------------------ the trainer's side
    def replace_publishers(self, incarnation: int) -> None:
        """Versions are published as `incarnation` from now on."""
        self._incarnation = incarnation

    def owed(self, version: int) -> bool:
        """Whether `version` is to be evaluated whatever the schedule says."""
        return version in self._owed

    def began(self) -> None:
        """The trainer has published the version that the run goes on from."""
        if self._step in self._owed:
            self._owed.discard(self._step)
            self._pin(self._step, missing=self._interrupted)

    def published(self, version: int, parameters: str, *, due: bool) -> None:
        """The trainer has made `version`, with weights of that hash; engines serve it, and its
        file is there until this returns. `due`: it is to be evaluated."""
        last = version == self._steps and self._final
        if not (last or (due and version < self._steps)):
            return
        self._owed.discard(version)
        before = self.records.read().get(version)
        if before is not None and before.parameters != parameters:
            self.records.forget(version)
        elif before is not None and before.status == "done":
            log.info("policy version %d was evaluated before the run was killed", version)
            return
        self.records.write(EvalRecord(version, parameters))
        if not last:
            self._pin(version, missing=None)

    def _pin(self, version: int, *, missing: Callable[[int], None] | None) -> None:
        source = self._weights_dir / version_name(version, incarnation=self._incarnation)
        pin = self._pin_of(version)
        try:
            pin.parent.mkdir(exist_ok=True)
            pin.unlink(missing_ok=True)
            os.link(source, pin)
        except OSError as error:
            if missing is not None and isinstance(error, FileNotFoundError):
                return missing(version)
            return self.end(version, "failed", f"its weights could not be kept: {error}")
        self._pinned.put_nowait(version)
        waiting = self._pinned.qsize() + self._ready.qsize()
        if waiting >= _MANY:
            log.warning(
                "%d versions wait to be evaluated: evaluations take longer than eval.every or "
                "eval.every_minutes allow; the run ends after the last of them",
                waiting,
            )

    def _pin_of(self, version: int) -> Path:
        return self._weights_dir / PINS / f"step-{version}.safetensors"

    def close(self) -> None:
        """No more versions will come."""
        self._pinned.put_nowait(None)

    # ------------------------------------------------------------------ the evaluator's side
    async def keep(self) -> None:
        """Bring pinned versions into the run's folder, until `close` was called."""
        while (version := await self._pinned.get()) is not None:
            target = self.records.weights(version)
            try:
                await asyncio.to_thread(_move, self._pin_of(version), target)
            except OSError as error:
                self.end(version, "failed", f"{target} could not be written: {error}")
            else:
                self._ready.put_nowait(version)
        self._ready.put_nowait(None)

    async def next(self) -> int | None:
        """The next version to evaluate; None: there will be none."""
        return await self._ready.get()

    def begin(self, version: int) -> None:
        """A version is evaluated that nobody has announced: the first one, or the last one of a
        run that was resumed after it."""
        if version not in self.records.read():
            self.records.write(EvalRecord(version))

    def end(
        self,
        version: int,
        status: Status,
        error: str = "",
        metrics: dict[str, float | None] | None = None,
    ) -> None:
        """An evaluation has come to an end; its weights are no longer needed."""
        record = self.records.read().get(version, EvalRecord(version))
        record = replace(record, status=status, error=error, metrics=metrics or {})
        self.records.write(record)
        self.records.weights(version).unlink(missing_ok=True)
        self._on_end(record)


def _move(pin: Path, target: Path) -> None:
    """Whole or not at all; a rename where both are on one disk."""
    try:
        pin.replace(target)
    except OSError:  # another disk
        beside = target.with_name(f".{target.name}.tmp")
        try:
            shutil.copyfile(pin, beside)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
            pin.unlink(missing_ok=True)
