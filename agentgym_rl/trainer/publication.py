"""The publication of policy versions by the trainer: all ranks write a version, rank 0 makes the
engines serve it.

A published version is the masters cast to the dtype in which the engines hold each tensor. Its
files are a snapshot: whatever happens to the masters afterwards, engines, audits and evaluations
read these bytes. The ranks own whole tensors, and each writes its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from agentgym_rl.config import Config, OwnEngineConfig, WeightsConfig
from agentgym_rl.core import Published, WeightsError
from agentgym_rl.runtime.atomic_file import remove
from agentgym_rl.storage import version_name
from agentgym_rl.storage.weights_folder import digest
from agentgym_rl.weights import (
    PartsWriter,
    Piece,
    Publisher,
    ReceiverKind,
    SharedFiles,
    StoredVersion,
    Transport,
    copy_version,
    new_folder,
    plan_parts,
    receiver_kind,
    recognized,
    stored_before,
    write_index,
)
from agentgym_rl.weights.files import Kind, combined, prune, stored
from agentgym_rl.weights.parts import Plan
from agentgym_rl.weights.version_folder import Version, oldest

from .backend import Model

T = TypeVar("T")

_WRITE_ERRORS = (OSError, ValueError, RuntimeError, WeightsError)


class Written(NamedTuple):
    """A version that all ranks have written."""

    parameters: str
    """The fingerprint of the masters, the same for any number of ranks (64 bits, in hex)."""
    stored: StoredVersion | None
    """The version's files; None on other ranks than 0, and if it was not stored."""


@dataclass(frozen=True, slots=True)
class _VersionFolder:
    """The folder of a version that is being written, as rank 0 tells the others."""

    part: Path
    over: Path | None
    previous: Path | None


class VersionWriter:
    """A writer of versions of `policy` into `folder`, which all ranks call in step.

    `kinds` are the dtypes of published tensors (`published_kinds`). `keep`: the versions that the
    folder has at most, the one being written included. `config`: the model's config.json, copied
    beside each version. `follows`: engines may rely on an earlier version for unchanged tensors.
    """

    def __init__(
        self,
        policy: Model,
        folder: Path,
        *,
        engine: OwnEngineConfig,
        incarnation: int = 0,
        keep: int = 2,
        config: Path | None = None,
        follows: bool = True,
    ) -> None:
        self._policy, self._world = policy, policy.world
        self._folder, self._keep, self._config = folder, keep, config
        self._incarnation = incarnation
        self._sequence = secrets.token_hex(8) if follows else ""
        cast = published_kinds(policy, engine)
        self._kinds = [cast(piece) for piece in policy.pieces()]
        self._previous: Path | None = None
        """The version written last (rank 0)."""

    def write(self, version: int, *, store: bool = True) -> Written:
        """Write the present weights as `version`, unless `store` is off: then they are only hashed
        (collective).

        If any rank cannot write its part, nothing of the version is visible.

        Raises:
            WeightsError: it cannot be written, by this rank or another; on all ranks.
        """
        if not store:
            everybody = range(self._world.size)
            digests = self._pass(plan_parts(self._kinds, writers=everybody), None)
            found = self._world.gather_all(digests)
            return Written(combined({n: it for part in found for n, it in part.items()}), None)
        path = self._folder / version_name(version, incarnation=self._incarnation)
        with ExitStack() as stack:
            place = self._agree(lambda: self._begin(path, stack), f"cannot begin {path}")[0]
            assert place is not None
            writers = [
                r for r, sees in enumerate(self._world.gather_all(place.part.is_dir())) if sees
            ]
            plan = plan_parts(self._kinds, writers=writers or [0])
            own = plan.parts.get(self._world.rank, ())
            parts = PartsWriter(place.part, own, previous=place.previous, over=place.over)
            with closing(parts):
                masters = self._agree(lambda: self._pass(plan, parts), f"cannot write {path}")
            made = self._world.gather_all((parts.digests, parts.changed))
            named = Version(number=version, incarnation=self._incarnation, sequence=self._sequence)

            def finish() -> None:
                if self._world.rank:
                    return
                write_index(
                    *(place.part, plan, named),
                    digests={n: it for digests, _ in made for n, it in digests.items()},
                    changed=[name for _, changed in made for name in changed],
                    previous=stored_before(place.previous),
                    config=self._config,
                )
                stack.close()  # renames the folder
                self._previous = path

            self._agree(finish, f"cannot complete {path}")
        parameters = combined({n: it for digests in masters for n, it in digests.items()})
        return Written(parameters, StoredVersion(path) if self._world.rank == 0 else None)

    def _begin(self, path: Path, stack: ExitStack) -> _VersionFolder | None:
        if self._world.rank:
            return None
        for left in self._folder.glob(".v*"):  # by ranks that were killed
            remove(left)
        over = oldest(self._folder, keep=self._keep)
        part, old = stack.enter_context(new_folder(path, over=over))
        return _VersionFolder(part, old, self._previous)

    def _pass(self, plan: Plan, parts: PartsWriter | None) -> dict[str, str]:
        """Gather each piece to its owner; write the own ones; return the digests of their masters.

        A thread writes a piece while the next ones are gathered, so that ranks write at the same
        time; it has one piece at a time. After a failure to write, the other pieces are still
        gathered, as the other ranks do.
        """
        masters: dict[str, str] = {}

        def store(tensors: Mapping[str, Tensor], kinds: Mapping[str, Kind]) -> None:
            for name, kind in kinds.items():
                masters[name] = _store(name, tensors[name], kind, parts)

        with ThreadPoolExecutor(1, "version") as thread:
            last: Future[None] | None = None
            pieces = zip(self._kinds, self._policy.gathered(plan.owners), strict=True)
            for kinds, tensors in pieces:
                if not tensors:  # another rank's
                    continue
                if last is not None and last.exception() is not None:
                    continue
                last = thread.submit(store, tensors, kinds)
        if last is not None:
            last.result()
        if parts is not None:
            parts.finish()
        return masters

    def _agree(self, step: Callable[[], T], what: str) -> list[T]:
        """Do `step` on every rank; return all results.

        Raises:
            WeightsError: it failed on any rank.
        """
        results: list[T] = []
        failure = ""
        try:
            results.append(step())
        except _WRITE_ERRORS as error:
            failure = f"{type(error).__name__}: {error}"
        found = self._world.gather_all((results, failure))
        failures = [f"rank {rank}: {why}" for rank, (_, why) in enumerate(found) if why]
        if failures:
            raise WeightsError(f"{what}: {'; '.join(failures)}")
        return [result for results, _ in found for result in results]


def _store(name: str, tensor: Tensor, kind: Kind, parts: PartsWriter | None) -> str:
    """Write a tensor as it is published; return the digest of the tensor itself."""
    if parts is None:
        return digest(name, stored(tensor))
    cast = tensor.to(kind.dtype)
    parts.write(name, cast)
    return parts.digests[name] if cast.dtype == tensor.dtype else digest(name, stored(tensor))


def published_kinds(policy: Model, engine: OwnEngineConfig) -> Callable[[Piece], dict[str, Kind]]:
    """Return a function from a piece to the kinds in which its tensors are published: those in
    which the engines hold them.

    An engine that does not round everything gets only the matrices of layers in bfloat16. Adapters
    stay as they are, since engines merge them in float32, and so do tensors that the model's folder
    has in float32 beside others in 16 bits.
    """
    everywhere = engine.rounds_everything
    precise = policy.names.precise if policy.names is not None else set[str]()
    rounded = frozenset[str]() if everywhere else policy.rounded_matrices

    def cast(piece: Piece) -> dict[str, Kind]:
        if engine.dtype == "float32" or policy.adapter is not None:
            return dict(piece.kinds)
        if not everywhere and not (piece.own and rounded.issuperset(piece.own)):
            return dict(piece.kinds)
        return {
            name: Kind(torch.bfloat16, kind.shape)
            if kind.dtype.is_floating_point and name not in precise
            else kind
            for name, kind in piece.kinds.items()
        }

    return cast


class VersionPublisher:
    """A publisher of versions (rank 0), which also keeps and removes them as configured in
    `weights`. With `keep_versions = "all"`, `kept` is the folder that has them permanently.
    """

    def __init__(self, publisher: Publisher, weights: WeightsConfig, *, kept: Path):
        self._publisher = publisher
        self._weights = weights
        self._kept = kept
        self._prepared: StoredVersion | None = None
        """The version whose publication has begun, and has not succeeded yet."""
        self._last: StoredVersion | None = None
        """The version that was published last."""
        self._done = Published(0.0, 0.0, {}, {})
        """The result of the publication in progress, so far."""
        self._copied: tuple[Path, Path] | None = None
        """The version that was kept last, and its copy."""

    @property
    def keeps_all(self) -> bool:
        """Return whether every version, the first one included, is kept in the run's folder."""
        return self._weights.keep_versions == "all"

    def keep(self, stored: StoredVersion) -> None:
        """Copy a version to the run's folder, permanently, by links where that is possible.

        Raises:
            WeightsError: it could not be copied.
        """
        path = self._kept / f"v-{stored.version}"
        try:
            self._kept.mkdir(parents=True, exist_ok=True)
            copy_version(stored.path, path, previous=self._copied)
        except OSError as error:
            raise WeightsError(f"cannot keep policy version {stored.version}: {error}") from error
        self._copied = stored.path, path

    def publish(
        self, stored: StoredVersion, engines: Mapping[str, str], *, timeout_s: float
    ) -> Published:
        """Load a version into engines (URLs by name), which must `swap` then.

        If the weights are those of the version published last, engines that serve it only get
        the new number, unless that has failed: nothing is transferred, and nothing pauses.

        Raises:
            WeightsError: it could not be kept.
        """
        last, self._last = self._last, None
        version = stored.version
        is_same = last is not None and last.digests == stored.digests
        same_as = last.version if last and is_same and last.version < version else None
        if self._prepared is not stored:
            if self.keeps_all:
                self.keep(stored)
            self._publisher.prepare(version, stored)
            self._prepared = stored
        self._done = self._publisher.stage(engines, version, timeout_s=timeout_s, same_as=same_as)
        self._tidy()
        return self._done

    def swap(self, engines: Sequence[str]) -> Published:
        """Make engines of the next wave serve the staged version."""
        swap = self._publisher.swap(engines)
        self._done = self._done.after(swap)
        self._tidy()
        return swap

    def _tidy(self) -> None:
        """Remove earlier versions, if all engines are done and some serve the prepared version."""
        if self._prepared is not None and self._done.pauses and not self._done.waves:
            self._last, self._prepared = self._prepared, None
            self._publisher.transport.tidy()
            prune(self._last.path.parent, num_stored_versions(self._weights))

    def close(self) -> None:
        """Release the resources that are held between publications."""
        self._publisher.close()


def num_stored_versions(weights: WeightsConfig) -> int:
    """Return the number of versions in the weights folder: those that engines may read, or, for a
    transport that sends them, the present one."""
    return weights.num_published if weights.leaves_files else 1


def make_publisher(
    config: Config, folder: Path, *, model_dir: Path | None = None, incarnation: int = 0
) -> Publisher:
    """Return the publisher of the configured run, which keeps every version that it prepares;
    `folder` is the run's weights folder (transport shm), `model_dir` that of its model,
    which versions for SGLang are checked against.

    Raises:
        ConfigError: the transport cannot work here.
    """
    return Publisher(
        transport=_transport(
            config.weights,
            folder,
            receiver_kind(config.engine.type),
            model_dir=model_dir,
            incarnation=incarnation,
            num_ranks=config.trainer.num_ranks,
        ),
        interrupt=config.rollout.interrupt,
        timeout_s=config.weights.update_timeout_s,
        polls_staging=receiver_kind(config.engine.type).polls_staging,
        incarnation=incarnation,
        may_sleep=config.cluster.shares_devices,
        recognize=recognized,
    )


def _transport(
    weights: WeightsConfig,
    folder: Path,
    kind: ReceiverKind,
    *,
    model_dir: Path | None,
    incarnation: int,
    num_ranks: int,
) -> Transport:
    """Return the transport of `weights.transport` to a kind of engine.

    Raises:
        ConfigError: the transport cannot work here.
    """
    if weights.transport == "shm":
        keep = weights.num_published
        return SharedFiles(folder, model_dir=model_dir, keep=keep, incarnation=incarnation)
    return kind.transport(weights, num_ranks=num_ranks, model_dir=model_dir)
