"""Checkpoints: model, optimizer and random state, for any number of ranks, written during training.

On a GPU a batch waits only until its state has been copied to the CPU's memory. On a CPU such a
copy would be three times the weights, so the batch waits until the files are written, though not
until they are on disk. A thread does the rest: it calls fsync and renames the folder, which makes
it a checkpoint (storage/checkpoints.py). The rename comes after the loop's command to complete it,
so that the run's log has every batch that a checkpoint covers.
"""

from __future__ import annotations

import importlib.metadata
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from dataclasses import KW_ONLY, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future as Written

from agentgym_rl.config import FORMAT, Config, dump_toml
from agentgym_rl.core import TrainerError
from agentgym_rl.runtime.atomic_file import put, remove, unfinished_path
from agentgym_rl.storage import MANIFEST, Manifest, Retention, checksums, read_manifest
from agentgym_rl.storage.checkpoints import prune

from .model_term import ModelTerm
from .packed import PackedModel
from .policy import Policy

_log = logging.getLogger(__name__)

_LIBRARIES = ("agentgym-rl", "torch", "transformers")
_WRITE_ERRORS = (OSError, CheckpointException, RuntimeError)


class _Writer(FileSystemWriter):
    """A writer that reports disk errors: a disk error makes torch raise another one when it closes
    the file, which names only a position in the file."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Written[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            found: BaseException | None = error
            while found is not None and not isinstance(found, OSError):
                found = found.__cause__ or found.__context__
            raise found or error from None


def _cause(error: BaseException) -> str:
    """Return the error of the disk that stopped a checkpoint, with its rank, without the traces of
    all ranks; the text of `error` if there is none."""
    failures = error.failures if isinstance(error, CheckpointException) else {}
    of_disk = ((rank, it) for rank, (it, _) in failures.items() if isinstance(it, OSError))
    rank, found = next(of_disk, (None, None))
    return str(error) if found is None else f"rank {rank}: {type(found).__name__}: {found}"


def config_hash(config: Config) -> str:
    """Return a hash of the resolved configuration."""
    return blake2b(dump_toml(config).encode(), digest_size=16).hexdigest()


@dataclass
class _Writing:
    """A checkpoint that is not complete yet."""

    manifest: Manifest
    written: Future[Any]
    """The write of the files by this rank; on rank 0, by all ranks."""
    metrics: dict[str, float | None] = field(default_factory=dict[str, "float | None"])
    reported: threading.Event = field(default_factory=threading.Event)
    abandoned: bool = False
    done: Future[Path | None] | None = None
    """The folder after its rename, None if that was given up (rank 0)."""


@dataclass
class Checkpoints:
    """A writer of a run's checkpoints, one at a time. All ranks have one and call it in step."""

    folder: Path
    policy: Policy
    optimizer: torch.optim.Optimizer
    _: KW_ONLY
    config_hash: str
    retention: Retention
    terms: Sequence[ModelTerm] = ()
    """The terms of the objective with models of their own."""
    timeout_s: float = 300.0
    before_complete: Callable[[], None] = lambda: None
    """A function that a thread of rank 0 calls just before a checkpoint is complete. If it raises a
    TrainerError, the checkpoint is not completed: the ranks have been replaced, and the new ranks
    do not rely on it."""

    def __post_init__(self) -> None:
        self._writing: _Writing | None = None
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        # Ranks that write a checkpoint communicate while the same ranks train.
        alone = self.policy.world.size == 1
        self._group = None if alone else cast("ProcessGroup", dist.new_group(backend="gloo"))

    def begin(self, step: int, *, parameters: str = "", lineage: str = "") -> None:
        """Begin to write the state after `step` batches; return once it is copied (collective).

        Raises:
            TrainerError: this one or the previous one cannot be written; others are untouched.
        """
        self.finish()
        world = self.policy.world
        manifest = Manifest(
            step,
            step,
            self.config_hash,
            world.size,
            _versions(),
            parameters=parameters,
            base=_base(self.policy),
            lineage=lineage,
            format=FORMAT,
        )
        path = self.folder / f"step-{step}"
        part = unfinished_path(path)
        try:
            if world.rank == 0:
                remove(part)  # left by a run that was killed
                part.mkdir(parents=True)
            world.barrier()
            written = self.write(part)
        except _WRITE_ERRORS as error:
            raise self._failed(path, error) from error
        self._writing = _Writing(manifest, written)
        if world.rank == 0:
            self._writing.done = self._thread.submit(self._complete, self._writing, part, path)

    def write(self, part: Path) -> Future[Any]:
        """Write this rank's files into `part`, on a GPU after the return (collective)."""
        _, state = _state(self.policy, self.optimizer, self.terms)
        if self.policy.world.device.type == "cuda" and self.policy.parallel is None:
            written = async_save(state, storage_writer=_Writer(part), process_group=self._group)
            assert isinstance(written, Future)  # its staging is done
            return written
        writer = _Writer(part, sync_files=False)  # `put` syncs them
        done: Future[Any] = Future()
        done.set_result(save(state, storage_writer=writer, process_group=self._group))
        return done

    def reported(self, metrics: Mapping[str, float | None]) -> Future[Path | None]:
        """Record that the log has the last batch, with these metrics (rank 0); return the folder of
        the checkpoint that was begun, once it is complete. None: there is none, or it was given
        up."""
        if self._writing is None or self._writing.done is None:
            nothing: Future[Path | None] = Future()
            nothing.set_result(None)
            return nothing
        self._writing.metrics = dict(metrics)
        self._writing.reported.set()
        return self._writing.done

    def finish(self) -> None:
        """Wait for the checkpoint that is being written.

        Raises:
            TrainerError: it could not be written.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return
        path = self.folder / f"step-{writing.manifest.step}"
        try:
            (writing.done or writing.written).result(timeout=self.timeout_s)
        except _WRITE_ERRORS as error:
            writing.abandoned = True
            raise self._failed(path, error) from error

    def _failed(self, path: Path, error: BaseException) -> TrainerError:
        if isinstance(error, NotDone):
            limit = f"{self.timeout_s:g} s (trainer.finish_timeout_s)"
            return TrainerError(f"checkpoint {path} was not written in {limit}")
        return TrainerError(f"cannot write checkpoint {path}: {_cause(error)}")

    def close(self) -> None:
        """Abandon the checkpoint that is not complete; idempotent."""
        if self._writing is not None:
            self._writing.abandoned = True
            self._writing.reported.set()
        self._thread.shutdown(wait=False)

    def _complete(self, writing: _Writing, part: Path, path: Path) -> Path | None:
        try:
            writing.written.result(timeout=self.timeout_s)
            writing.reported.wait(self.timeout_s)
            if writing.abandoned or not writing.reported.is_set():
                return None
            return self._put(writing, part, path)
        except _WRITE_ERRORS as error:
            raise self._failed(path, error) from error

    def _put(self, writing: _Writing, part: Path, path: Path) -> Path | None:
        """Make the written files a checkpoint, unless other ranks have replaced these."""
        items = sorted(part.iterdir())
        manifest = replace(
            writing.manifest,
            metrics=writing.metrics,
            files={item.name: item.stat().st_size for item in items},
            checksums=checksums(items),
        )
        (part / MANIFEST).write_text(manifest.sealed(), encoding="utf-8")
        try:
            self.before_complete()
        except TrainerError as error:
            _log.warning("checkpoint %s is left unfinished: %s", path, error)
            return None
        put(part, path, durable=True)  # replaces the same step, written before a resume
        prune(self.folder, self.retention)
        return path


def load_checkpoint(
    path: Path,
    policy: Policy,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    terms: Sequence[ModelTerm] = (),
) -> Manifest:
    """Restore model, optimizer, the models of terms and random state in place, those that are given
    (collective).

    Raises:
        TrainerError: there is no complete checkpoint, or it is of another model.
    """
    manifest = read_manifest(path)
    if manifest.base != _base(policy):
        raise TrainerError(
            f"checkpoint {path} is of {_described(manifest.base)}, and this run trains "
            f"{_described(_base(policy))}"
        )
    if not (path / ".metadata").exists():
        raise TrainerError(f"checkpoint {path} is of another trainer.backend: only that reads it")
    state, files = _state(policy, optimizer, terms)
    try:
        load(files, checkpoint_id=path)
        set_state_dict(
            policy.model,
            optimizer or [],
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=_options(policy, strict=False),
        )
        for term in terms:
            term.restore(state)
    except (*_WRITE_ERRORS, ValueError, KeyError) as error:
        raise TrainerError(f"cannot load checkpoint {path}: {error}") from error
    torch.set_rng_state(files["random"])
    return manifest


def _state(
    policy: Policy,
    optimizer: torch.optim.Optimizer | None,
    terms: Sequence[ModelTerm],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state, and the same memory as it is in files."""
    model, optim = get_state_dict(policy.model, optimizer or [], options=_options(policy))
    parts: list[tuple[dict[str, Any], Sequence[PackedModel]]] = [
        ({"model": model, "optimizer": optim}, [policy]),
        *((dict(term.state()), term.models) for term in terms),
    ]
    state = {key: value for part, _ in parts for key, value in part.items()}
    # One random state serves all ranks, because no rank draws numbers of its own.
    files: dict[str, Any] = {"random": torch.get_rng_state()}
    for part, models in parts:
        for its in models:
            part = its.parallel.checkpointed(part) if its.parallel else part
        files |= part
    return state, files


def _options(policy: Policy, *, strict: bool = True) -> StateDictOptions | None:
    """Return options that leave out the frozen weights of the model below an adapter."""
    if policy.adapter is None:
        return None
    return StateDictOptions(ignore_frozen_params=True, strict=strict)


def _base(policy: Policy) -> str:
    return f"{policy.adapter.base:08x}" if policy.adapter is not None else ""


def _described(base: str) -> str:
    return f"an adapter of the weights {base}" if base else "all weights, without an adapter"


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _LIBRARIES}
