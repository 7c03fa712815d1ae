"""The supervised warm-up on rows before the first batch: cross-entropy of the labelled tokens.

Each step's loss is the mean over the labelled tokens of all its rows, so packing, micro-batches and
ranks do not change it.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import torch

from agentgym_rl.algo.balance import balance
from agentgym_rl.config import Config, TrainerConfig
from agentgym_rl.core import Row, TrainerError
from agentgym_rl.core.row import unpack_row
from agentgym_rl.core.trajectory import UNPACK_ERRORS
from agentgym_rl.trainer import (
    MicroBatch,
    Policy,
    accumulate,
    export_model,
    join_world,
    learning_rate,
    make_optimizer,
    set_learning_rate,
    take_step,
    warm_up_trainer,
)

from .keys import InitConfig

_NOWHERE = torch.zeros(0, dtype=torch.int64)
"""The places in a batch's flat arrays, which a warm-up does not have."""


def warm_up(
    config: Config,
    *,
    model_dir: Path,
    rows: Path,
    out: Path,
    steps: Path,
    rank: int = 0,
    world_size: int = 1,
    rendezvous: str = "",
) -> None:
    """Train the model in `model_dir` on `rows` as rank `rank`, and export it to `out`.

    Rank 0 appends {"step", "steps", "loss", "lr"} to `steps` after each optimizer step.

    Raises:
        TrainerError: the rows cannot be read or trained, or a gradient is not finite.
    """
    torch.set_num_threads(warm_up_trainer(config.trainer, config.engine).num_threads)
    with join_world(
        rank=rank,
        size=world_size,
        num_replicas=config.trainer.num_replicas,
        rendezvous=rendezvous,
        device=config.trainer.device,
        timeout_s=config.trainer.batch_timeout_s,
    ) as world:
        policy = Policy.configured(config, model_dir, world)
        for told in learn(
            policy, read_rows(rows), config.of(InitConfig), config.trainer, seed=config.seed
        ):
            if world.rank == 0:
                with steps.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(told) + "\n")
        state = policy.exported()
        if world.rank == 0:
            export_model(out, state, model_dir=model_dir, names=policy.names)


def learn(
    policy: Policy, rows: Sequence[Row], init: InitConfig, trainer: TrainerConfig, *, seed: int
) -> Iterator[dict[str, float]]:
    """Take every step of `init` (collective); yield the metrics of each one."""
    world = policy.world
    optimizer = make_optimizer(policy.model, trainer)
    per_epoch = math.ceil(len(rows) / init.rows_per_step)
    num_steps = init.epochs * per_epoch
    for step, batch in enumerate(_batches(rows, init, seed)):
        rate = learning_rate(trainer, step, num_steps=num_steps, peak=init.learning_rate)
        set_learning_rate(optimizer, rate)
        total = sum(row.num_trained for row in batch)
        mine = [batch[i] for i in balance([len(row) for row in batch], world.size)[world.rank]]
        plan = [MicroBatch(packed, _NOWHERE) for _, packed in policy.micro_batches(mine)]
        (rounds,) = world.maxima([len(plan)])
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
