"""The main loop of a trainer rank: load; then batch in, step, weights out, report; then export."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from agentgym_rl.config import Config
from agentgym_rl.core.batch import StepReport
from agentgym_rl.core.errors import ArlError, StorageError
from agentgym_rl.models.defaults import with_model_defaults
from agentgym_rl.storage.checkpoints import Retention, lineage_after
from agentgym_rl.storage.trained_tokens import forget_tokens, write_tokens
from agentgym_rl.weights.files import StoredVersion

from .agreement import Agreement
from .checkpoint import Checkpoints, config_hash
from .client import BatchTimeout, ControllerClient, RunEnding
from .export import adapter_files, export_model
from .publication import VersionPublisher, VersionWriter, make_publisher, num_stored_versions
from .shard_tensors import ShardTokens
from .step import make_stepper
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


class _Terminated(BaseException):
    """The arrival of SIGTERM."""


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
) -> None:
    """Train `config.steps` batches as rank `rank`, without those that the checkpoint `resume`
    covers (any number of ranks wrote it); return when the run is done or ending.

    `served` is the version that engines have from earlier ranks of the same run; None if there were
    none. Batches up to it are trained and reported again, and only that version is published again.

    Step k publishes policy version k + 1. Only rank 0 writes weights, publishes, reports and
    exports. The controller's bearer token is read from ARL_TOKEN. If the controller reports that
    the run is ending, or SIGTERM arrives, the rank ends without an export.

    Raises:
        SystemExit: with 143, after SIGTERM.
        TrainerError, WeightsError: a step failed, or the controller or an engine is gone.
    """
    torch.set_num_threads(config.trainer.num_threads)
    config = with_model_defaults(config, model_dir)
    client = ControllerClient(controller_url, os.environ.get("ARL_TOKEN", ""))
    versions = VersionPublisher(
        make_publisher(config, weights_dir, model_dir=model_dir, incarnation=incarnation),
        config.weights,
        restart_s=config.own_engine.start_timeout_s,
        client=client,
        kept=run_dir / "weights",
    )
    meeting = join_world(
        rank=rank,
        size=world_size,
        num_replicas=config.trainer.num_replicas,
        rendezvous=rendezvous,
        device=config.trainer.device,
        # Ranks wait in collectives while rank 0 publishes.
        timeout_s=config.trainer.batch_timeout_s + versions.longest_s,
    )
    try:
        with _sigterm_raises(), meeting as world:
            trainer = _Trainer(
                *(config, world, client, versions, model_dir, run_dir, resume, served),
                weights_dir=weights_dir,
                incarnation=incarnation,
            )
            try:
                trainer.run()
            finally:
                trainer.checkpoints.close()
    except RunEnding as end:
        _log.info("trainer rank %d ends before its last step: %s", rank, end)
    except _Terminated:
        _log.info("trainer rank %d was terminated", rank)
        raise SystemExit(128 + signal.SIGTERM) from None  # not a success
    finally:
        versions.close()


class _Trainer:
    def __init__(
        self,
        config: Config,
        world: World,
        client: ControllerClient,
        versions: VersionPublisher,
        model_dir: Path,
        run_dir: Path,
        resume: Path | None,
        served: int | None,
        *,
        weights_dir: Path,
        incarnation: int,
    ):
        self._config, self._world = config, world
        self._client, self._versions = client, versions
        self._model_dir, self._run_dir = model_dir, run_dir
        self._served = served
        self._stored: StoredVersion | None = None
        """The version that was written last (rank 0)."""
        self._stepper = make_stepper(config, world, model_dir)
        self._policy = self._stepper.policy
        self._files = VersionWriter(
            self._policy,
            weights_dir,
            engine=config.own_engine,
            incarnation=incarnation,
            keep=num_stored_versions(config.weights),
            config=model_dir / "config.json",
            # Engines that drop their weights when they sleep have no earlier version.
            follows=not config.cluster.colocated,
        )
        self._offload = self._stepper.offload()
        self._agreement = Agreement(
            self._policy, config.trainer, engine_dtype=config.own_engine.dtype
        )
        trainer = config.trainer
        self.checkpoints = Checkpoints(
            run_dir / "checkpoints",
            self._policy,
            self._stepper.optimizer,
            config_hash=config_hash(config),
            retention=Retention.of(trainer),
            critic=self._stepper.critic,
            reference=self._stepper.moving,
            timeout_s=trainer.finish_timeout_s,
            before_complete=client.check_current,
            on_complete=client.checkpointed,
        )
        self._first, self._lineage = 0, ""
        if resume is not None:
            manifest = self._stepper.restore(resume)
            self._first, self._lineage = manifest.step, manifest.lineage
        self._tokens = TokensOut(
            run_dir, rank=world.rank, from_step=self._first, keeps=config.logging.tokens
        )

    def run(self) -> None:
        self._begin()
        self._client.ready(self._world.rank)
        for step in range(self._first, self._config.steps):
            self._step(step)
        self.checkpoints.finish()
        adapter = self._policy.adapter
        trained = self._policy.trained_state() if adapter is not None else {}
        state = self._policy.exported()
        if self._world.rank == 0:
            export_model(
                self._run_dir / "export",
                state,
                model_dir=self._model_dir,
                adapter=adapter_files(adapter, trained),
                names=self._policy.names,
            )
            if self._config.weights.transport != "shm":
                self._stay()

    def _begin(self) -> None:
        """Keep the first weights of these ranks for audits, and publish them to servers that have
        other weights, or that ran before this run and may have any."""
        engine = self._config.own_engine
        behind = self._first > 0 or bool(engine.attached) or self._served is not None
        needed = behind or self._versions.keeps_all
        if needed and self._served in (None, self._first):
            self._stored = self._files.write(self._first).stored
        self._let_go()
        if self._stored is None:
            return
        if behind:
            self._versions.publish(self._stored)
        else:
            self._versions.keep(self._stored)

    def _let_go(self) -> None:
        """Leave the device to the engines if they share it; on all ranks, before rank 0
        publishes."""
        if self._config.cluster.colocated:
            self._offload.away()
            self._world.barrier()

    def _step(self, step: int) -> None:
        """Train batch `step`, publish the new version and report the step."""
        config, phases = self._config, Phases()
        with phases.phase("rollout_wait"):
            shard = self._client.batch(
                step,
                rank=self._world.rank,
                timeout_s=config.trainer.batch_timeout_s,
                republish=lambda: self._republish(step),
            )
        if config.cluster.colocated:
            with phases.phase("onload"):
                self._offload.back()

        def look(tokens: ShardTokens, proximal: Tensor, advantages: Tensor) -> None:
            self._tokens.write(step, tokens, proximal, advantages)
            warning = self._agreement.check(step, tokens, proximal)
            if warning and self._world.rank == 0:
                self._client.warn(warning)

        try:
            with self._client.telling(lambda: self._stepper.flops):
                metrics = self._stepper.train_shard(shard, phases, on_tokens=look)
        except ArlError as error:
            # Other ranks would fail on the same batch in the same way.
            self._client.failed(f"batch {step} cannot be trained: {error}")
            raise
        others: dict[str, list[tuple[str, float, float]]] = {}
        with phases.phase("weight_sync"):
            is_new = step + 1 >= (self._served or 0)
            written = self._files.write(step + 1, store=is_new)
            if is_new:
                self._let_go()
            if written.stored is not None:
                self._stored = written.stored
                published = self._versions.publish(self._stored)
                metrics["time/engine_pause"] = published.pause_s
                metrics["time/weights_stage"] = published.stage_s
                others = {name: [("pause", *at)] for name, at in published.pauses.items()}
        group_ids = list(dict.fromkeys(shard.group_ids))
        self._lineage = lineage_after(self._lineage, step, group_ids)
        self._checkpoint(step + 1, written.parameters, phases, asked=shard.checkpoint)
        for rank, found in enumerate(self._world.gather(phases.intervals)[1:], start=1):
            others[f"trainer-{rank}"] = found
        if self._world.rank == 0:
            report = StepReport(
                step=step,
                version=step + 1,
                metrics={**metrics, **phases.seconds()},
                intervals=phases.intervals,
                others=others,
                group_ids=group_ids,
                parameters=written.parameters,
            )
            self.checkpoints.reported(self._client.report(report))

    def _stay(self) -> None:
        """Wait until the run ends: an engine that dies in the last evaluation can get its weights
        only from this process.

        Raises:
            RunEnding: always, in the end.
            TrainerError: the controller is gone.
        """
        steps, patience_s = self._config.steps, self._config.trainer.finish_timeout_s
        while True:
            with contextlib.suppress(BatchTimeout):
                self._client.batch(
                    steps,
                    rank=0,
                    timeout_s=patience_s,
                    republish=lambda: self._republish(steps),
                )

    def _republish(self, version: int) -> None:
        """Publish the current version once more, for an engine that restarted without it."""
        _log.info("publishing policy version %d again, for an engine that came back", version)
        assert self._stored is not None
        self._versions.publish(self._stored)

    def _checkpoint(self, done: int, parameters: str, phases: Phases, *, asked: bool) -> None:
        """Begin to write a checkpoint after `done` batches, if one is due or was `asked` for."""
        config = self._config
        every = config.trainer.checkpoint_every
        if not asked and done != config.steps and not (every and done % every == 0):
            return
        with phases.phase("checkpoint"):
            self.checkpoints.begin(done, parameters=parameters, lineage=self._lineage)


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    def raise_terminated(signum: int, frame: object) -> None:
        raise _Terminated("SIGTERM")

    before = signal.signal(signal.SIGTERM, raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
