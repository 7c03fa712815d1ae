"""The interface of a transport, and the state of one publication."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from itertools import accumulate
from typing import TypeVar

from torch import Tensor

from agentgym_rl.core.engine import Interrupt
from agentgym_rl.core.errors import WeightsError

from .engine_routes import Pause, RemoteEngine

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
        futures = {engine: _in_thread(step, engine) for engine in self.alive.values()}
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

    def wait_staged(self, engine: RemoteEngine, *, deadline: float) -> None:
        """Wait for an engine that stages after its reply to the update request."""
        if self._polls_staging:
            engine.wait_staged(deadline=deadline)


class Transport(ABC):
    """A way to bring policy versions to engines: `prepare` once, then `stage` and `swap`."""

    @abstractmethod
    def prepare(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Take the tensors of a version, which do not change until the next one.

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

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release the resources held between publications."""


def rank_offsets(workers: Mapping[str, int], *, first: int) -> dict[str, int]:
    """Return the rank of each engine's first worker in one group of all, engine by engine."""
    return dict(zip(workers, accumulate(workers.values(), initial=first), strict=False))


def _in_thread(step: Callable[[RemoteEngine], T], engine: RemoteEngine) -> Future[T]:
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(step(engine))
        except BaseException as error:
            future.set_exception(error)

    # A daemon thread: the end of this process need not wait for a silent engine.
    threading.Thread(target=run, name=f"publish-{engine.name}", daemon=True).start()
    return future
