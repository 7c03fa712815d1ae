"""The interface of a transport, the state of one publication, and the transport `shm`: files
in a folder that trainer and engines both access."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from torch import Tensor

from agentgym_rl.core import Interrupt, WeightsError, swap_waves
from agentgym_rl.runtime import in_thread

from .engine_routes import Pause, RemoteEngine, Way
from .files import Prepared, StoredVersion, prune
from .version_folder import oldest, write_version

T = TypeVar("T")


Recognize = Callable[[RemoteEngine, float], RemoteEngine]
"""A function that returns the client for the kind of a new engine, from a client for any kind and a
deadline."""


def as_it_is(engine: RemoteEngine, deadline: float) -> RemoteEngine:
    """Return the client of an engine that has the usual routes."""
    return engine


class Publication:
    """A publication of one version: the engines still in it, and the failed ones with reasons.

    `engines` are URLs by name, `deadline` its end in seconds of `time.monotonic`. `polls_staging`:
    engines answer /update_weights before they have staged, and are polled. `may_sleep`: some may be
    asleep, with only their weights awake, and stay asleep. `known` has the clients of engines of
    earlier publications by name; those of new engines, which `recognize` returns, are added.
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
        known: dict[str, RemoteEngine] | None = None,
        recognize: Recognize = as_it_is,
    ):
        self.label = label
        self.interrupt: Interrupt = interrupt
        self.polls_staging = polls_staging
        self.deadline = deadline
        self.may_sleep = may_sleep
        self.failed: dict[str, str] = {}
        known = {} if known is None else known
        for name in known.keys() - engines.keys():  # a name is one life of an engine
            known.pop(name).close()
        self.alive = {
            name: known.get(name) or RemoteEngine(name, url) for name, url in engines.items()
        }
        new = [engine for name, engine in self.alive.items() if name not in known]
        known |= self.each(lambda engine: recognize(engine, deadline), among=new)
        self.alive = {name: known[name] for name in self.alive}

    def each(
        self, step: Callable[[RemoteEngine], T], *, among: Iterable[RemoteEngine] | None = None
    ) -> dict[str, T]:
        """Call `step`, which must end by itself, for all engines at once (or those in `among`);
        return the results by name.

        Engines for which it raises WeightsError have failed.
        """
        # The end of this process need not wait for a silent engine.
        futures = {
            engine: in_thread(partial(step, engine), name=f"publish-{engine.name}")
            for engine in (self.alive.values() if among is None else among)
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

    def fail_all(self, error: WeightsError, *, among: Iterable[RemoteEngine] | None = None) -> None:
        """Exclude all engines (or those in `among`) for the same reason."""
        for engine in list(self.alive.values() if among is None else among):
            self.fail(engine, WeightsError(f"{engine}: {error}"))

    def group(self) -> dict[str, RemoteEngine]:
        """Return the engines that join one broadcast group."""
        return {name: engine for name, engine in self.alive.items() if engine.joins_group}


class Transport(ABC):
    """A method of transferring policy versions to engines: `prepare` once, then `stage` and
    `swap`."""

    @abstractmethod
    def prepare(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Prepare the tensors of a version, which do not change until the next one. They may be a
        `StoredVersion`: then none is in memory before it is sent.

        Raises:
            WeightsError: the tensors cannot be prepared (for example, for lack of space).
        """

    @abstractmethod
    def stage(self, publication: Publication, *, deadline: float) -> None:
        """Load the prepared version into the engines, in addition to the weights that they serve,
        while they sample.

        Engines that do not complete this by `deadline` are excluded from the publication.
        """

    def waves(self, publication: Publication) -> list[Sequence[str]]:
        """Return the engines that have staged the version, in the order of their swaps."""
        return swap_waves(list(publication.alive))

    def swap(
        self, publication: Publication, names: Sequence[str], *, deadline: float
    ) -> dict[str, Pause]:
        """Make the engines of a wave serve the staged version; return each one's pause."""
        return publication.each(
            lambda engine: engine.swap(
                publication.label,
                interrupt=publication.interrupt,
                deadline=deadline,
                may_sleep=publication.may_sleep,
            ),
            among=[publication.alive[name] for name in names],
        )

    def tidy(self) -> None:  # noqa: B027 - most leave nothing
        """Remove data of earlier versions that is no longer needed."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release the resources held between publications."""


class SharedFiles(Transport):
    """The transport `shm`: the files of a version in `folder` (see files.py), which has at most
    `keep` versions (at least two while one is written); the folder's creator removes them at the
    end. Some engines check a version against the model in `model_dir`."""

    def __init__(
        self, folder: Path, *, model_dir: Path | None = None, keep: int = 2, incarnation: int = 0
    ):
        self._folder = folder
        self._model_dir = model_dir
        self._version: Prepared | None = None
        self._keep = keep
        self._incarnation = incarnation
        self._sequence = secrets.token_hex(8)
        self._previous: Path | None = None
        self.path = Path()
        """The folder of the version that was prepared last."""

    def prepare(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        self._close_version()
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
        self._close_version()
        prune(self._folder, self._keep)

    def close(self) -> None:
        self._close_version()

    def _close_version(self) -> None:
        if self._version is not None:
            self._version.close()
        self._version = None

    def stage(self, publication: Publication, *, deadline: float) -> None:
        if self._version is None:
            self._version = Prepared(self.path, self._model_dir)
        version = self._version
        publication.each(
            lambda engine: engine.stage_file(
                self.path,
                version=version,
                label=publication.label,
                interrupt=publication.interrupt,
                deadline=deadline,
                polls=publication.polls_staging,
                timeout_s=publication.deadline - time.monotonic(),
            )
        )


def stage_tensors(
    publication: Publication, version: Prepared, *, way: Way, deadline: float
) -> None:
    """Prepare engines that join no group to receive the tensors in their pause."""
    engines = [engine for engine in publication.alive.values() if not engine.joins_group]
    if way != "gloo":  # no other engine supports this transport
        engines = list(publication.alive.values())
    if not engines:
        return
    try:
        address = own_address(engine.url for engine in engines)
    except WeightsError as error:
        for engine in engines:
            publication.fail(engine, error)
        return
    publication.each(
        lambda engine: engine.stage_tensors(
            version=version,
            way=way,
            address=address,
            interrupt=publication.interrupt,
            deadline=deadline,
        ),
        among=engines,
    )


def rank_offsets(workers: Mapping[str, int], *, first: int) -> dict[str, int]:
    """Return the rank of each engine's first worker in a group of all workers, engine by engine."""
    return dict(zip(workers, accumulate(workers.values(), initial=first), strict=False))


def own_address(urls: Iterable[str]) -> str:
    """Return an address of this host that the servers at all `urls` can reach.

    Raises:
        WeightsError: one of them cannot be reached from here.
    """
    own = "127.0.0.1"
    for url in urls:
        try:
            own = _own_address_to(urlsplit(url).hostname or "")
        except OSError as error:
            raise WeightsError(f"{url}: no way there from this host: {error}") from error
        if not ipaddress.ip_address(own).is_loopback:
            break  # engines on this host can reach it too
    return own


def _own_address_to(host: str) -> str:
    """Return this host's address on the way to `host`, which may have one of IPv6 alone."""
    found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, address = min(found, key=lambda way: way[0] != socket.AF_INET)
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # sends nothing
        return probe.getsockname()[0]
