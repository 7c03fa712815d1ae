"""What a transport has to do, and the publication it does it for."""

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
    """One version on its way to some engines: who still takes part, who failed, and why.

    `engines` are URLs by name, `deadline` the end of it in seconds of `time.monotonic`.
    `polls_staging`: engines answer /update_weights before they have staged, and are asked.
    `may_sleep`: some may sleep, with their weights awake, and sleep on.
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
        """Do `step`, which must end by itself, with all engines at once; what it returned.

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
        """Leave an engine out from here on."""
        self.alive.pop(engine.name, None)
        self.failed[engine.name] = "; ".join([str(error), *getattr(error, "__notes__", ())])

    def wait_staged(self, engine: RemoteEngine, *, deadline: float) -> None:
        """Wait for an engine that stages beside the request that told it to."""
        if self._polls_staging:
            engine.wait_staged(deadline=deadline)


class Transport(ABC):
    """A way of bringing policy versions to engines: `prepare` once, then `stage` and `swap`."""

    @abstractmethod
    def prepare(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Take the tensors of a version, which stay as they are until the next one.

        Raises:
            WeightsError: they cannot be had ready (no space, for one).
        """

    @abstractmethod
    def stage(self, publication: Publication, *, deadline: float) -> None:
        """Bring what was prepared beside the weights that the engines serve, while they sample.

        Engines where that fails, or is not done by `deadline`, fail the publication.
        """

    def swap(self, publication: Publication) -> dict[str, Pause]:
        """Make the engines serve what is staged, one after the other; when each stood still."""
        pauses: dict[str, Pause] = {}
        engines = list(publication.alive.values())
        # A fair share of the time each: one that hangs takes nothing from the others, not even
        # by the time it is given to resume.
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
        """Let go of what is held between publications."""


def rank_offsets(workers: Mapping[str, int], *, first: int) -> dict[str, int]:
    """The rank of each engine's first worker in one group of all of them, one after the other."""
    return dict(zip(workers, accumulate(workers.values(), initial=first), strict=False))


def _in_thread(step: Callable[[RemoteEngine], T], engine: RemoteEngine) -> Future[T]:
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(step(engine))
        except BaseException as error:
            future.set_exception(error)

    # A daemon: whoever ends this process need not wait for the deadline of a silent engine.
    threading.Thread(target=run, name=f"publish-{engine.name}", daemon=True).start()
    return future
