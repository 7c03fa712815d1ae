"""The queue of due evaluations of a run: versions with their weights, in order.

A version is pinned when it is published: hard links next to the files that engines read protect it
from pruning. A thread then moves it into the run's folder, which may be on another disk, until it
is evaluated. Waiting versions are limited only by disk space, and outlive the process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from agentgym_rl.runtime import replacing
from agentgym_rl.runtime.atomic_file import remove
from agentgym_rl.storage import EvalRecord, EvalRecords, Recovered, version_name
from agentgym_rl.storage.evaluations import Status
from agentgym_rl.storage.recovery import NOTHING

log = logging.getLogger(__name__)

PINS = "evaluating"
"""The folder of pinned versions, in the run's weights folder."""
_MANY = 2
"""The number of waiting versions that causes a warning."""


class EvalQueue:
    """The due and waiting evaluations, and their results. One event loop only.

    `steps`: the number of the last version. `scheduled`: versions are evaluated on schedule.
    `final`: the run evaluates its first and last version itself; the queue only records them.
    `on_end(record)` is called with each record that has ended.
    """

    def __init__(
        self,
        run_dir: Path,
        weights_dir: Path,
        *,
        steps: int,
        scheduled: bool,
        recovered: Recovered = NOTHING,
        final: bool = True,
        on_end: Callable[[EvalRecord], None] = lambda record: None,
    ) -> None:
        self.records = EvalRecords(run_dir)
        self._weights_dir = weights_dir
        self._incarnation = recovered.incarnation
        self._steps = steps
        self._scheduled = scheduled
        self._final = final
        self._on_end = on_end
        self._step = recovered.step
        self._pinned: asyncio.Queue[int | None] = asyncio.Queue()
        self._ready: asyncio.Queue[int | None] = asyncio.Queue()
        self._owed: set[int] = set()
        """The versions that were due before a crash and have to be trained again."""
        self._is_resumed = recovered.incarnation > 0

    def recover(self) -> None:
        """Recover the evaluations of a killed run. Call it once, before anything else."""
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
        """Set the `incarnation` of versions published from now on."""
        self._incarnation = incarnation

    def owed(self, version: int) -> bool:
        """Return whether `version` is to be evaluated independently of the schedule."""
        return version in self._owed

    def began(self) -> None:
        """Pin the version from which the run continues, if due; the trainer has published it."""
        if self._step in self._owed:
            self._owed.discard(self._step)
            self._pin(self._step, missing=self._interrupted)

    def published(self, version: int, parameters: str, *, due: bool) -> None:
        """Record a new `version` with the hash `parameters` of its weights, and pin it if `due`.

        Engines serve it; its file exists until this returns. `due`: it is to be evaluated."""
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
        remove(pin)
        try:
            pin.mkdir(parents=True)
            for file in source.iterdir():
                os.link(file, pin / file.name)
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
        return self._weights_dir / PINS / f"step-{version}"

    def close(self) -> None:
        """Close the queue: no more versions will come."""
        self._pinned.put_nowait(None)

    # ------------------------------------------------------------------ the evaluator's side
    async def keep(self) -> None:
        """Move pinned versions into the run's folder, until `close` is called."""
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
        """Wait for the next version to evaluate; None: there are no more."""
        return await self._ready.get()

    def begin(self, version: int) -> None:
        """Record the start of an evaluation, if it has no record yet: of the first version, or of
        the last version of a run that was resumed after it."""
        if version not in self.records.read():
            self.records.write(EvalRecord(version))

    def end(
        self,
        version: int,
        status: Status,
        error: str = "",
        metrics: dict[str, float | None] | None = None,
    ) -> None:
        """Record the end of an evaluation, and remove its weights."""
        record = self.records.read().get(version, EvalRecord(version))
        record = replace(record, status=status, error=error, metrics=metrics or {})
        self.records.write(record)
        remove(self.records.weights(version))
        self._on_end(record)


def _move(pin: Path, target: Path) -> None:
    """Move a folder atomically; a rename if both paths are on one disk."""
    remove(target)
    try:
        pin.replace(target)
    except OSError:  # another disk
        try:
            with replacing(target) as part:
                shutil.copytree(pin, part, copy_function=shutil.copyfile)
        finally:
            remove(pin)
