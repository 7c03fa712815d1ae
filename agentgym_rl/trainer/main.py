"""A rank of the trainer: it loads the model, and serves the commands of the run's loop."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from agentgym_rl.config import Config
from agentgym_rl.controller import TOO_LARGE
from agentgym_rl.core import ArlError, BatchShard, Published, StepReport, StorageError, TrainerError
from agentgym_rl.models import with_model_defaults
from agentgym_rl.runtime import import_function, lacks_memory
from agentgym_rl.storage import Retention
from agentgym_rl.storage.checkpoints import lineage_after
from agentgym_rl.storage.trained_tokens import forget_tokens, write_tokens
from agentgym_rl.weights import StoredVersion

from .agreement import Agreement
from .backend import TrainerBackend
from .checkpoint import config_hash
from .publication import VersionPublisher, VersionWriter, make_publisher, num_stored_versions
from .server import Controller, Final, RankServer
from .shard_tensors import ShardTokens
from .usage import Phases
from .world import World, join_world

_log = logging.getLogger(__name__)


class TokensOut:
    """A writer of a rank's files in `RUN/tokens/`. A full disk is reported once, and then nothing
    more is written: training does not need these files, and reports a full disk for its own."""

    def __init__(self, run: Path, *, rank: int, from_step: int, keeps: bool = True) -> None:
        """Remove the files of `from_step`, where training begins, and of later steps: they are of
        weights that are gone. This happens even if `keeps` is off."""
        self._run, self._rank = run, rank
        self._works = keeps
        if rank:
            return
        try:
            forget_tokens(run, from_step=from_step)
        except OSError as error:
            _log.warning("%s: what earlier ranks kept stays until it is replaced", error)

    def write(self, step: int, tokens: ShardTokens, proximal: Tensor, advantages: Tensor) -> None:
        """Write the tokens of batch `step`, unless that is off or has failed before."""
        if not self._works:
            return
        try:
            write_tokens(
                self._run,
                step=step,
                rank=self._rank,
                rows=tokens.rows,
                proximal=proximal.detach().float().cpu().numpy(),
                advantages=advantages.detach().float().cpu().numpy(),
            )
        except StorageError as error:
            self._works = False
            _log.warning(
                "%s; training continues, and from step %d on `arl inspect` has neither proximal "
                "log-probs nor advantages of rank %d: make room, or set logging.tokens=false",
                *(error, step, self._rank),
            )


def run(
    config: Config,
    *,
    model_dir: Path,
    run_dir: Path,
    weights_dir: Path,
    controller_url: str,
    rank: int = 0,
    world_size: int = 1,
    rendezvous: str = "",
    incarnation: int = 0,
    resume: Path | None = None,
    served: int | None = None,
    splits: bool = False,
) -> None:
    """Be rank `rank`, on the model or on the checkpoint `resume` (any number of ranks wrote it);
    return when the run needs it no more.

    `served` is the version that engines have from earlier ranks of the same run; None if there were
    none. Batches up to it are trained again, and only that version is published again. `splits`:
    micro-batches have half as many tokens.

    The controller's bearer token is read from ARL_TOKEN. Only rank 0 publishes and exports.

    Raises:
        SystemExit: with 143, after SIGTERM.
        TrainerError, WeightsError: a command failed, or the controller is gone.
    """
    torch.set_num_threads(config.trainer.num_threads)
    config = with_model_defaults(config, model_dir)
    controller = Controller(controller_url, os.environ.get("ARL_TOKEN", ""))
    publisher = make_publisher(config, weights_dir, model_dir=model_dir, incarnation=incarnation)
    versions = VersionPublisher(publisher, config.weights, kept=run_dir / "weights")
    meeting = join_world(
        rank=rank,
        size=world_size,
        num_replicas=config.trainer.num_replicas,
        unit=config.trainer.ranks_per_row,
        rendezvous=rendezvous,
        device=config.trainer.device,
        timeout_s=config.trainer.batch_timeout_s,
    )
    try:
        with _sigterm_raises(), meeting as world:
            files = _Files(model_dir, run_dir, weights_dir, incarnation, resume)
            try:
                trainer = _Rank(config, world, controller, versions, files, served, splits=splits)
                try:
                    trainer.run()
                finally:
                    trainer.checkpoints.close()
            except Exception as error:
                if isinstance(error, ArlError) or not lacks_memory(error):
                    raise
                raise TrainerError(f"{error}. {config.trainer.less_memory}") from error
    finally:
        versions.close()


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of a rank."""

    model_dir: Path
    run_dir: Path
    weights_dir: Path
    incarnation: int
    resume: Path | None


class _Rank:
    """The model of a rank, and the commands."""

    def __init__(
        self,
        config: Config,
        world: World,
        controller: Controller,
        versions: VersionPublisher,
        files: _Files,
        served: int | None,
        *,
        splits: bool,
    ) -> None:
        trainer, self._files = config.trainer, files
        self._config, self._world = config, world
        self._controller, self._versions = controller, versions
        self._served = served
        self._stored: StoredVersion | None = None
        """The version that was written last (rank 0)."""
        self._parameters = ""
        """The hash of the present weights."""
        gets = "config, world, model_dir"
        load = import_function("trainer.backend", trainer.backend_loader, gets=gets)
        self._trainer: TrainerBackend = load(config, world, files.model_dir)
        self._policy = self._trainer.policy
        self._splits = splits
        if splits:
            self._trainer.split()
        self._writer = VersionWriter(
            self._policy,
            files.weights_dir,
            engine=config.own_engine,
            incarnation=files.incarnation,
            keep=num_stored_versions(config.weights),
            config=files.model_dir / "config.json",
            # Engines that drop their weights when they sleep have no earlier version.
            follows=not config.cluster.shares_devices,
        )
        self._offload = self._trainer.offload()
        self._agreement = Agreement(self._policy, trainer, engine_dtype=config.own_engine.dtype)
        self.checkpoints = self._trainer.checkpoints(
            files.run_dir / "checkpoints",
            config_hash=config_hash(config),
            retention=Retention.of(trainer),
            timeout_s=trainer.finish_timeout_s,
            before_complete=controller.check_current,
        )
        self._first, self._lineage = 0, ""
        if files.resume is not None:
            manifest = self._trainer.restore(files.resume)
            self._first, self._lineage = manifest.step, manifest.lineage
        self._done = self._first
        """The number of batches that the weights have been trained on."""
        self._tokens = TokensOut(
            files.run_dir,
            rank=world.part if world.is_first else world.rank,
            from_step=self._first,
            keeps=config.logging.tokens and world.is_first,  # others have the same tokens
        )
        self._server = RankServer(
            controller, passes=lambda: self._trainer.flops, complete=self._complete
        )

    def run(self) -> None:
        """Serve commands until there are no more."""
        version = self._begin()
        with self._server.served() as url:
            self._controller.ready(self._world.rank, url, version=version)
            self._server.run(
                {
                    "train": self._train,
                    "publish": self._publish,
                    "swap": self._swap,
                    "checkpoint": self._checkpoint,
                    "export": self._export,
                }
            )

    def _begin(self) -> int | None:
        """Keep the first weights of these ranks for audits; return their version if it must be
        published, to servers that have other weights, or that ran before this run and may have
        any."""
        engine = self._config.own_engine
        behind = self._first > 0 or bool(engine.attached) or self._served is not None
        needed = behind or self._versions.keeps_all
        if needed and self._served in (None, self._first):
            self._stored = self._writer.write(self._first).stored
        self._let_go()
        if self._stored is not None and not behind:
            self._versions.keep(self._stored)
        return self._first if self._stored is not None and behind else None

    def _let_go(self) -> None:
        """Leave the device to the engines if they share it; on all ranks, before rank 0
        publishes."""
        if self._config.cluster.shares_devices:
            self._offload.away()
            self._world.barrier()

    def _train(self, body: bytes) -> bytes:
        """Train a batch, and write the new version (collective); return the packed report."""
        shard, phases, warnings = BatchShard.unpack(body), Phases(), list[str]()
        self._check_done(shard.step)
        step, waited = shard.step, ("rollout_wait", self._server.idle_since_s, time.monotonic())
        phases.intervals.append(waited)
        if self._config.cluster.shares_devices:
            with phases.phase("onload"):
                self._offload.back()

        def look(tokens: ShardTokens, proximal: Tensor, advantages: Tensor) -> None:
            self._tokens.write(step, tokens, proximal, advantages)
            if warning := self._agreement.check(step, tokens, proximal):
                warnings.append(warning)

        try:
            metrics = self._trainer.train_shard(shard, phases, on_tokens=look)
        except Exception as error:
            if lacks_memory(error):
                raise self._too_large(shard, error) from error
            if isinstance(error, ArlError):
                raise Final(f"batch {step} cannot be trained: {error}") from error
            raise
        self._done += 1
        with phases.phase("weight_sync"):
            is_new = step + 1 >= (self._served or 0)
            written = self._writer.write(step + 1, store=is_new)
            if is_new:
                self._let_go()
        self._stored, self._parameters = written.stored or self._stored, written.parameters
        group_ids = list(dict.fromkeys(shard.group_ids))
        self._lineage = lineage_after(self._lineage, step, group_ids)
        found = self._world.gather_all(phases.intervals)
        return StepReport(
            step=step,
            version=step + 1,
            metrics={**metrics, **phases.seconds()},
            intervals=phases.intervals,
            others={f"trainer-{rank}": its for rank, its in enumerate(found) if rank},
            group_ids=group_ids,
            parameters=written.parameters,
            warnings=warnings,
        ).pack()

    def _too_large(self, shard: BatchShard, error: Exception) -> TrainerError:
        """Return the error of a batch that does not fit; final, unless it can be split further."""
        longest = max((len(it.row) for part in shard.minibatches for it in part), default=0)
        most = self._policy.budget([longest])
        text = (
            f"batch {shard.step} {TOO_LARGE} trainer-{self._world.rank}, in micro-batches of up to "
            f"{most:,} tokens (the longest row has {longest:,}): {error}"
        )
        if not self._splits and self._policy.packs and longest < most:
            return TrainerError(text)
        return Final(f"{text}. {self._config.trainer.less_memory}")

    def _check_done(self, step: int) -> None:
        """Refuse a command that is meant for the weights of `step` batches, if these are others."""
        if step != self._done:
            raise TrainerError(
                f"a command for the weights after {step} batches came to a rank whose weights have "
                f"had {self._done}: nothing was trained or written with it"
            )

    def _publish(self, body: bytes) -> Published:
        """Load the version that was written last into engines."""
        what = msgspec.msgpack.decode(body, type=_Publish)
        if self._stored is None or self._stored.version != what.version:
            raise TrainerError(f"policy version {what.version} is not the one written last")
        return self._versions.publish(self._stored, what.engines, timeout_s=what.timeout_s)

    def _swap(self, body: bytes) -> Published:
        """Make engines serve the version that they have staged."""
        return self._versions.swap(msgspec.msgpack.decode(body, type=list[str]))

    def _checkpoint(self, body: bytes) -> Sequence[tuple[str, float, float]]:
        """Begin to write a checkpoint (collective); return its intervals."""
        step, phases = msgspec.msgpack.decode(body)["step"], Phases()
        self._check_done(step)
        with phases.phase("checkpoint"):
            self.checkpoints.begin(
                step,
                parameters=self._parameters,
                lineage=self._lineage,
            )
        return phases.intervals

    def _complete(self, metrics: Mapping[str, float | None]) -> Future[Path | None]:
        return self.checkpoints.reported(metrics)

    def _export(self, body: bytes) -> None:
        """Write the trained model (collective), once the last checkpoint is complete."""
        self.checkpoints.finish()
        self._trainer.export(self._files.run_dir / "export", model_dir=self._files.model_dir)


class _Publish(msgspec.Struct):
    version: int
    engines: dict[str, str]
    timeout_s: float


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    def raise_terminated(signum: int, frame: object) -> None:
        raise SystemExit(128 + signum)  # not a success

    before = signal.signal(signal.SIGTERM, raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
