"""The interface of a transport, the state of one publication, and the transport `shm`: files
in a folder that trainer and engines both access."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from agentgym_rl.core.engine import Interrupt
from agentgym_rl.core.errors import WeightsError
from agentgym_rl.runtime.tasks import in_thread

from .engine_routes import Pause, RemoteEngine
from .files import StoredVersion, prune
from .parts import oldest, write_version

T = TypeVar("T")


class Publication:
    """A publication of one version: the engines still in it, and the failed ones with reasons.

    `engines` are URLs by name, `deadline` its end in seconds of `time.monotonic`. `polls_staging`:
    engines answer /update_weights before they have staged, and are polled. `may_sleep`: some may be
    asleep, except their weights, and stay asleep.
    """

    def __init__(
        self,
        engines: Mapping[str, str],
        *,
        label: str,
        interrupt: Interrupt,
        polls_staging: bool,
        deadline: float,
        may_sleep: bool = False,
    ):
        self.label = label
        self.interrupt: Interrupt = interrupt
        self._polls_staging = polls_staging
        self.deadline = deadline
        self.may_sleep = may_sleep
        self.alive = {name: RemoteEngine(name, url) for name, url in engines.items()}
        self.failed: dict[str, str] = {}

    def each(self, step: Callable[[RemoteEngine], T]) -> dict[str, T]:
        """Do `step`, which must end by itself, with all engines at once; return the results by
        name.

        Engines for which it raises WeightsError have failed.
        """
        # The end of this process need not wait for a silent engine.
        futures = {
            engine: in_thread(partial(step, engine), name=f"publish-{engine.name}")
            for engine in self.alive.values()
        }
        results: dict[str, T] = {}
        for engine, future in futures.items():
            try:
                results[engine.name] = future.result()
            except WeightsError as error:
                self.fail(engine, error)
        return results

    def fail(self, engine: RemoteEngine, error: WeightsError) -> None:
        """Exclude an engine from the rest of the publication."""
        self.alive.pop(engine.name, None)
        self.failed[engine.name] = "; ".join([str(error), *getattr(error, "__notes__", ())])

    def fail_all(self, error: WeightsError) -> None:
        """Exclude all engines for the same reason."""
        for engine in list(self.alive.values()):
            self.fail(engine, WeightsError(f"{engine}: {error}"))

    def wait_staged(self, engine: RemoteEngine, *, deadline: float) -> None:
        """Wait for an engine that stages after its reply to the update request."""
        if self._polls_staging:
            engine.wait_staged(deadline=deadline)


class Transport(ABC):
    """A way to bring policy versions to engines: `prepare` once, then `stage` and `swap`."""

    @abstractmethod
    def prepare(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Take the tensors of a version, which do not change until the next one. They may be a
        `StoredVersion`: then none is in memory before it is sent.

        Raises:
            WeightsError: the tensors cannot be made ready (for example, for lack of space).
        """

    @abstractmethod
    def stage(self, publication: Publication, *, deadline: float) -> None:
        """Load the prepared version beside the weights that the engines serve, while they sample.

        Engines that do not complete this by `deadline` fail the publication.
        """

    def swap(self, publication: Publication) -> dict[str, Pause]:
        """Make the engines serve the staged version, one after the other; return each one's
        pause."""
        pauses: dict[str, Pause] = {}
        engines = list(publication.alive.values())
        # Each engine gets an equal share of the time: one that hangs takes none from the others,
        # not even with the time that it gets to resume.
        share_s = (publication.deadline - time.monotonic()) / max(1, len(engines))
        for engine in engines:
            try:
                pauses[engine.name] = engine.swap(
                    publication.label,
                    interrupt=publication.interrupt,
                    deadline=time.monotonic() + share_s,
                    may_sleep=publication.may_sleep,
                )
            except WeightsError as error:
                publication.fail(engine, error)
        return pauses

    def tidy(self) -> None:  # noqa: B027 - most leave nothing
        """Remove what was prepared for earlier versions and is not needed any more."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release the resources held between publications."""


class SharedFiles(Transport):
    """A transport by the files of a version in `folder` (see files.py), which has at most `keep`
    versions (at least two while one is written); the folder's creator removes them at the end."""

    def __init__(self, folder: Path, *, keep: int = 2, incarnation: int = 0):
        self._folder = folder
        self._keep = keep
        self._incarnation = incarnation
        self._sequence = secrets.token_hex(8)
        self._previous: Path | None = None
        self.path = Path()
        """The folder of the version that was prepared last."""

    def prepare(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        if isinstance(tensors, StoredVersion) and tensors.path.parent == self._folder:
            self.path = tensors.path
            return
        try:
            over = oldest(self._folder, keep=self._keep)
        except OSError as error:
            raise WeightsError(f"cannot read {self._folder}: {error}") from error
        self.path = self._previous = write_version(
            self._folder,
            version,
            tensors,
            incarnation=self._incarnation,
            sequence=self._sequence,
            previous=self._previous,
            over=over,
        )

    def tidy(self) -> None:
        prune(self._folder, self._keep)

    def stage(self, publication: Publication, *, deadline: float) -> None:
        # The longest that a finish may wait for staging; the wait below makes that unnecessary.
        init = {"init_info": {"timeout_s": publication.deadline - time.monotonic()}}
        update = {"update_info": {"path": str(self.path)}}

        def stage(engine: RemoteEngine) -> None:
            # Initialize each time: an engine may have been restarted behind the same URL.
            engine.post("/init_weight_transfer_engine", init, deadline=deadline)
            engine.start_update(deadline=deadline)
            engine.post("/update_weights", update, deadline=deadline)
            publication.wait_staged(engine, deadline=deadline)

        publication.each(stage)


def rank_offsets(workers: Mapping[str, int], *, first: int) -> dict[str, int]:
    """Return the rank of each engine's first worker in one group of all, engine by engine."""
    return dict(zip(workers, accumulate(workers.values(), initial=first), strict=False))
