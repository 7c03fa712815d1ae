"""The trainer of the policy in this process, for loops of one's own: complete batches, or single
passes and optimizer steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from agentgym_rl.controller import Engines, batch_metrics, publish, shards_of
from agentgym_rl.controller.schedule import Schedule
from agentgym_rl.core import BatchShard, Group, Published, StepReport
from agentgym_rl.storage import Manifest, Retention
from agentgym_rl.storage.checkpoints import lineage_after
from agentgym_rl.storage.metrics import finite
from agentgym_rl.storage.run_files import Run
from agentgym_rl.weights import Publisher
from agentgym_rl.weights.files import prune

from .agreement import Agreement
from .checkpoint import config_hash
from .optim import learning_rate, set_learning_rate, take_step
from .publication import make_publisher, num_stored_versions
from .shard_tensors import MicroBatch, ShardTokens, accumulate, frozen_pass
from .step import Stepper, make_stepper
from .usage import Phases
from .world import join_world


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The trained tokens of some rows in a pass: one number for each token, [N]."""

    logprobs: Tensor
    """The log-probs under the present weights, with their gradient."""
    behavior_logprobs: Tensor
    """The log-probs under which the tokens were sampled."""
    rewards: Tensor
    """The reward of each token's episode."""
    episodes: Tensor
    """The number of each token's episode in the batch: group after group, member after member."""
    turns: Tensor
    """The number of each token's turn in its episode."""
    staleness: Tensor
    """The age of the weights that sampled each token, in versions."""


Loss = Callable[[Tokens], Tensor]
"""A loss of some rows, to be added over all rows of a batch."""


class Trainer:
    """A trainer of the policy in this process, on one device. There is one in a process at a time.

    `train` does what `arl train` does with a batch, by the configured algorithm. `logprobs`,
    `forward_backward` and `optimizer_step` are its parts for algorithms of one's own.

    >>> from agentgym_rl import Trainer, runs
    >>> with runs.temporary() as run, Trainer.started(run) as trainer:
    ...     folder = trainer.export(run.folder / "export")  # `from_pretrained` loads it
    ...     trainer.version, (folder / "model.safetensors").exists()
    (0, True)
    """

    def __init__(self, run: Run, stepper: Stepper, publisher: Publisher) -> None:
        """Store the arguments; `started` makes them."""
        config = run.config
        self.run = run
        self.version = 0
        """The version that was published last."""
        self._stepper = stepper
        self._policy = stepper.policy
        self._publisher = publisher
        dtype = config.own_engine.dtype
        self._agreement = Agreement(stepper.policy, config.trainer, engine_dtype=dtype)
        self._has_moved = False
        """True after an optimizer step whose weights were not published."""
        self._trained, self._lineage = 0, ""
        """The batches on which the weights were trained: their number, and `lineage_after`."""
        self._metrics: Mapping[str, float] = {}
        """The metrics of the last batch."""
        own = config.trainer
        self._checkpoints = Schedule(own.checkpoint_every, own.checkpoint_every_minutes)

    @classmethod
    @contextmanager
    def started(cls, run: Run) -> Generator[Trainer]:
        """Load the model for a context; if the run is resumed, the weights of its checkpoint.

        Raises:
            ConfigError: the model cannot be trained as configured, or on no such device.
        """
        config = run.config
        torch.set_num_threads(config.trainer.num_threads)
        publisher = make_publisher(config, run.weights, model_dir=run.model_dir)
        with closing(publisher), join_world(device=config.trainer.device) as world:
            trainer = cls(run, make_stepper(config, world, run.model_dir), publisher)
            if run.recovered.checkpoint is not None:
                trainer.load(run.recovered.checkpoint)
            yield trainer

    # ------------------------------------------------------------------ a whole batch
    async def train(
        self,
        step: int,
        groups: Sequence[Group],
        *,
        dropped: Mapping[str, int] = MappingProxyType({}),
    ) -> StepReport:
        """Train a batch, in a thread; return the report with its metrics (docs/metrics.md).

        The log-probs of tokens that the published weights sampled are compared with the engine's
        (`trainer.mismatch_stop`), unless a step was taken since. `dropped`: the causes counted by a
        `Buffer`.

        Raises:
            TrainerError: the batch cannot be trained, or trainer and engine disagree.
        """
        return await asyncio.to_thread(self._train, step, groups, dropped)

    def _train(self, step: int, groups: Sequence[Group], dropped: Mapping[str, int]) -> StepReport:
        phases = Phases()
        is_fresh, self._has_moved = not self._has_moved, True

        def look(tokens: ShardTokens, proximal: Tensor, advantages: Tensor) -> None:
            if is_fresh:
                self._agreement.check(step, tokens, proximal)

        metrics = self._stepper.train_shard(self._shard(step, groups), phases, on_tokens=look)
        metrics = {**batch_metrics(groups, step, dropped), **metrics, **phases.seconds()}
        group_ids = [group.group_id for group in groups]
        if step >= self._trained:  # not a further optimizer step within the batch
            self._trained, self._metrics = step + 1, metrics
            self._lineage = lineage_after(self._lineage, step, group_ids)
        return StepReport(
            step=step,
            version=step + 1,
            metrics=metrics,
            intervals=phases.intervals,
            group_ids=group_ids,
        )

    def _shard(self, step: int, groups: Sequence[Group]) -> BatchShard:
        config = self.run.config
        (shard,) = shards_of(
            groups, step=step, algo=config.algo, trainer=config.trainer, num_ranks=1
        )
        return shard

    # ------------------------------------------------------------------ its parts
    async def logprobs(self, groups: Sequence[Group]) -> list[Tensor]:
        """Return the log-probs of trained tokens under the present weights, a tensor for each
        episode: group after group, member after member.

        Raises:
            TrainerError: a row is too long, or has tokens that the model does not have.
        """
        return await asyncio.to_thread(self._logprobs, groups)

    def _logprobs(self, groups: Sequence[Group]) -> list[Tensor]:
        _, tokens = self._tokens(groups)
        found = frozen_pass(self._policy, self._policy.logprobs, tokens)
        return [found[tokens.episodes == e] for e in range(len(tokens.tokens_per_episode))]

    async def forward_backward(self, groups: Sequence[Group], loss: Loss) -> float:
        """Add the gradients of a loss of one's own, which is called with some rows at a time;
        return its sum over all rows.

        Raises:
            TrainerError: see `logprobs`.
        """
        return await asyncio.to_thread(self._forward_backward, groups, loss)

    def _forward_backward(self, groups: Sequence[Group], loss: Loss) -> float:
        shard, tokens = self._tokens(groups)
        rewards = torch.tensor(shard.rewards, dtype=torch.float32)[tokens.episodes]

        def of(batch: MicroBatch) -> Tensor:
            at, logprobs = batch.index, self._policy.logprobs(batch.packed)

            def same(values: Tensor) -> Tensor:
                return values[at].to(logprobs.device)

            return loss(
                Tokens(
                    logprobs,
                    behavior_logprobs=same(tokens.behavior_logprobs),
                    rewards=same(rewards),
                    episodes=same(tokens.episodes),
                    turns=same(tokens.turns),
                    staleness=same(tokens.staleness),
                )
            )

        plan = tokens.micro_batches(range(len(tokens.rows)), self._policy)
        return accumulate(self._policy, plan, len(plan), of)

    async def optimizer_step(self, step: int) -> float:
        """Take an optimizer step with the gradients so far, at the learning rate of batch `step`;
        return the norm of the gradients before they were clipped.

        Raises:
            TrainerError: a gradient is not finite.
        """
        return await asyncio.to_thread(self._optimizer_step, step)

    def _optimizer_step(self, step: int) -> float:
        config = self.run.config
        rate = learning_rate(config.trainer, step, num_steps=config.steps)
        set_learning_rate(self._stepper.optimizer, rate)
        self._has_moved = True
        return take_step(self._stepper.optimizer, config.trainer.max_grad_norm)

    def _tokens(self, groups: Sequence[Group]) -> tuple[BatchShard, ShardTokens]:
        shard = self._shard(self.version, groups)
        return shard, ShardTokens.from_shard(shard, vocab_size=self._policy.vocab_size)

    # ------------------------------------------------------------------ its weights
    async def publish(self, engines: Engines, version: int) -> Published:
        """Give the present weights to the engines as `version`, while they sample.

        Raises:
            WeightsError: no engine took them.
        """
        config = self.run.config
        await asyncio.to_thread(self._prepare, version)

        async def give(urls: Mapping[str, str], timeout_s: float) -> Published:
            stage = partial(self._publisher.stage, urls, version, timeout_s=timeout_s)
            return await asyncio.to_thread(stage)

        swap = partial(asyncio.to_thread, self._publisher.swap)
        limit_s = config.weights.update_timeout_s
        wait_s = config.own_engine.start_timeout_s + limit_s
        done = await publish(engines, version, give, swap, wait_s=wait_s, timeout_s=limit_s)
        prune(self.run.weights, keep=num_stored_versions(self.run.config.weights))
        self.version, self._has_moved = version, False
        return done

    def _prepare(self, version: int) -> None:
        self._publisher.prepare(version, self._policy.trained_state())

    def checkpoint_due(self, step: int) -> bool:
        """Return whether to `save` now, with `step` batches trained (`trainer.checkpoint_every`,
        `checkpoint_every_minutes`; the last batch anyway). Call it once for each."""
        return self._checkpoints.due(step) or step == self.run.config.steps

    async def save(self, step: int) -> Path:
        """Write model, optimizer and random state after `step` batches, which are recorded, to the
        run's folder `checkpoints/step-N`; return it once it is on disk, and `runs.resumed` would
        continue from it.

        Raises:
            TrainerError: it cannot be written.
        """
        folder = await asyncio.to_thread(self._save, step)
        await self.run.log.checkpointed(step, str(folder))
        return folder

    def _save(self, step: int) -> Path:
        config = self.run.config
        checkpoints = self._stepper.checkpoints(
            self.run.folder / "checkpoints",
            config_hash=config_hash(config),
            retention=Retention.of(config.trainer),
            timeout_s=config.trainer.finish_timeout_s,
        )
        with closing(checkpoints):
            checkpoints.begin(step, lineage=self._lineage)
            checkpoints.reported(finite(self._metrics))
            checkpoints.finish()
        return checkpoints.folder / f"step-{step}"

    def load(self, checkpoint: Path) -> Manifest:
        """Continue from a checkpoint; engines get its weights with the next `publish`.

        Raises:
            TrainerError: there is no complete checkpoint, or it is of another model.
        """
        self._has_moved = True
        manifest = self._stepper.restore(checkpoint)
        self._trained, self._lineage = manifest.step, manifest.lineage
        self._metrics = {}
        return manifest

    def export(self, folder: Path) -> Path:
        """Write the model to a folder that `from_pretrained` loads; return it.

        Raises:
            TrainerError: it cannot be written.
        """
        return self._stepper.export(folder, model_dir=self.run.model_dir)
