"""The repeated training of a run's batches outside the run; nothing is published or written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from agentgym_rl.config import Config
from agentgym_rl.core.batch import BatchShard

from .checkpoint import load_checkpoint
from .publisher import fingerprint
from .step import make_stepper
from .usage import Phases
from .world import join_world


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a repeated batch."""

    step: int
    metrics: dict[str, float]
    parameters: str


def replay_batches(
    config: Config, shards: Sequence[BatchShard], *, model_dir: Path, checkpoint: Path | None
) -> Iterator[Replayed]:
    """Train `shards`, complete batches in order, with one rank, from `checkpoint` on (None: from
    the model).

    Raises:
        TrainerError: the checkpoint cannot be loaded, or a batch cannot be trained.
    """
    torch.set_num_threads(config.trainer.num_threads)
    with join_world(device=config.trainer.device) as world:
        stepper = make_stepper(config, world, model_dir)
        if checkpoint is not None:
            load_checkpoint(checkpoint, stepper.policy, stepper.optimizer, critic=stepper.critic)
        for shard in shards:
            metrics = stepper.train(shard, Phases())
            yield Replayed(shard.step, metrics, fingerprint(stepper.policy.trained_state()))
