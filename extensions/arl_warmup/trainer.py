"""The supervised warm-up on rows before the first batch: cross-entropy of the labelled tokens.

Each step's loss is the mean over the labelled tokens of all its rows, so packing, micro-batches and
ranks do not change it.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec
import torch

from agentgym_rl.algo import deal
from agentgym_rl.config import Config, EngineConfig, OwnEngineConfig, TrainerConfig
from agentgym_rl.core import BatchRow, BatchShard, Row, TrainerError
from agentgym_rl.core.row import unpack_row
from agentgym_rl.core.trajectory import UNPACK_ERRORS
from agentgym_rl.storage import Retention
from agentgym_rl.trainer import (
    Checkpoints,
    Policy,
    ShardTokens,
    World,
    accumulate,
    export_model,
    in_rounds,
    join_world,
    learning_rate,
    load_checkpoint,
    make_optimizer,
    set_learning_rate,
    take_step,
)

from .keys import CHECKPOINTS, MODEL, ROWS, STEPS, InitConfig

SAVE_EVERY_S = 30.0
"""The least time between two checkpoints of a warm-up."""
_SAVING = 20
"""The time between two checkpoints, at least, in times that the last one took to be written."""


def warm_up(
    config: Config,
    *,
    model_dir: Path,
    folder: Path,
    resume: Path | None = None,
    rank: int = 0,
    world_size: int = 1,
    rendezvous: str = "",
) -> None:
    """Run rank `rank` of a warm-up of the model in `model_dir`; see `train_in`."""
    torch.set_num_threads(warm_up_trainer(config.trainer, config.engine).num_threads)
    with join_world(
        rank=rank,
        size=world_size,
        num_replicas=config.trainer.num_replicas,
        unit=config.trainer.ranks_per_row,
        rendezvous=rendezvous,
        device=config.trainer.device,
        timeout_s=config.trainer.batch_timeout_s,
    ) as world:
        train_in(folder, config, world, model_dir=model_dir, resume=resume)


def train_in(
    folder: Path,
    config: Config,
    world: World,
    *,
    model_dir: Path,
    resume: Path | None = None,
    save_every_s: float = SAVE_EVERY_S,
) -> None:
    """Train the model in `model_dir` on the rows in `folder`, from the checkpoint `resume` on, and
    export it to the subfolder `model` (collective).

    Rank 0 appends {"step", "steps", "loss", "lr"} to `steps.jsonl` after each optimizer step. All
    ranks write a checkpoint now and then.

    Raises:
        TrainerError: the rows cannot be read or trained, a gradient is not finite, or a checkpoint
            cannot be read or written.
    """
    policy = Policy.configured(config, model_dir, world)
    optimizer = make_optimizer(policy.model, config.trainer)
    done = load_checkpoint(resume, policy, optimizer).step if resume else 0
    saved = _Saved(policy, optimizer, folder / CHECKPOINTS, save_every_s)
    init, rows = config.of(InitConfig), read_rows(folder / ROWS)
    for told in learn(
        policy, rows, init, config.trainer, seed=config.seed, optimizer=optimizer, done=done
    ):
        if world.rank == 0:
            with (folder / STEPS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(told) + "\n")
        saved.after(int(told["step"]) + 1)
    state = policy.exported()
    if world.rank == 0:
        export_model(folder / MODEL, state, model_dir=model_dir, names=policy.names)


class _Saved:
    """The checkpoints of a warm-up, of which the newest is kept; `every_s`: the least time between
    two (0: one after each step). All ranks have one and call it in step."""

    def __init__(
        self, policy: Policy, optimizer: torch.optim.Optimizer, folder: Path, every_s: float
    ) -> None:
        self._world, self._every_s, self._last_s = policy.world, every_s, time.monotonic()
        self._checkpoints = Checkpoints(
            folder, policy, optimizer, config_hash="", retention=Retention(keep=1)
        )

    def after(self, step: int) -> None:
        """Write a checkpoint after `step` steps, if rank 0 finds that one is due."""
        began_s = time.monotonic()
        is_due = self._world.rank == 0 and began_s - self._last_s >= self._every_s
        if not self._world.maxima([int(is_due)])[0]:
            return
        self._checkpoints.begin(step)
        self._checkpoints.reported({})
        self._checkpoints.finish()
        self._last_s = time.monotonic()
        if self._every_s:
            self._every_s = max(self._every_s, _SAVING * (self._last_s - began_s))


def learn(
    policy: Policy,
    rows: Sequence[Row],
    init: InitConfig,
    trainer: TrainerConfig,
    *,
    seed: int,
    optimizer: torch.optim.Optimizer | None = None,
    done: int = 0,
) -> Iterator[dict[str, float]]:
    """Take every step of `init` after the first `done` (collective); yield the metrics of each
    one."""
    world = policy.world
    optimizer = optimizer or make_optimizer(policy.model, trainer)
    per_epoch = math.ceil(len(rows) / init.rows_per_step)
    num_steps = init.epochs * per_epoch
    for step, batch in islice(enumerate(_batches(rows, init, seed)), done, None):
        rate = learning_rate(trainer, step, num_steps=num_steps, peak=init.learning_rate)
        set_learning_rate(optimizer, rate)
        total = sum(row.num_trained for row in batch)
        parts = world.size // world.unit
        dealt = deal([[row.tokens] for row in batch], range(len(batch)), parts)
        mine = [BatchRow(batch[i], i) for i in dealt[world.part]]
        count = len(batch)
        shard = BatchShard(step, [0.0] * count, [""] * count, total, count, [mine])
        tokens = ShardTokens.from_shard(shard, vocab_size=policy.vocab_size)
        (plan,), (rounds,) = in_rounds(tokens.minibatches, tokens, policy)
        loss = accumulate(
            policy, plan, rounds, lambda b, n=total: -policy.logprobs(b.packed).sum() / n
        )
        take_step(optimizer, trainer.max_grad_norm)
        policy.give_back_memory()
        whole = sum(world.gather(loss))
        yield {"step": step, "steps": num_steps, "loss": whole, "lr": rate}


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file written by `arl_warmup.method`.

    Raises:
        TrainerError: it is no such file.
    """
    try:
        return [unpack_row(blocks) for blocks in msgspec.msgpack.decode(path.read_bytes())]
    except (OSError, *UNPACK_ERRORS) as error:
        raise TrainerError(f"cannot read the rows in {path}: {error}") from error


def _batches(rows: Sequence[Row], init: InitConfig, seed: int) -> Iterator[list[Row]]:
    """Yield the batches of all epochs; each epoch has its own order, the same on every rank."""
    size = init.rows_per_step
    for epoch in range(init.epochs):
        order = list(range(len(rows)))
        random.Random(f"init/{seed}/{epoch}").shuffle(order)
        for start in range(0, len(order), size):
            yield [rows[i] for i in order[start : start + size]]


def warm_up_trainer(trainer: TrainerConfig, engine: EngineConfig) -> TrainerConfig:
    """Return the settings of a warm-up's ranks. No engine runs at the same time, so they share its
    CPU threads, as far as this machine has cores."""
    is_own = isinstance(engine, OwnEngineConfig)
    idle = engine.num_servers * engine.num_threads if is_own else 0
    cores = len(os.sched_getaffinity(0))
    threads = min(trainer.num_threads + idle // trainer.num_ranks, cores // trainer.num_ranks)
    return trainer.model_copy(update={"num_threads": max(trainer.num_threads, threads)})
