"""A trainer rank that counts the most bytes of tensors it has at once (tests/plan/test_memory.py).

    python memory_child.py MODEL OUT RANK SIZE OPTIONS

writes to OUT/RANK.json, for each of the options (a list, JSON), the bytes that it keeps between
batches, and the most in a batch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from prompt_frees import wait_for_frees
from test_memory import peak_bytes
from torch.distributed.tensor import DTensor
from trainer_samples import make_row, make_shards, with_behavior

from agentgym_rl.config import load_config
from agentgym_rl.core import BatchRow, Row
from agentgym_rl.trainer import Phases, World, join_world, make_stepper

VOCAB = 2048
MICRO_BATCHES = 2


def bytes_of(tensor: torch.Tensor) -> int:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).nbytes


def measured(model_dir: Path, world: World, options: dict[str, Any]) -> dict[str, Any]:
    """Train a batch of full micro-batches; return the bytes."""
    length, given = options["row"], {k: v for k, v in options.items() if "." in k}
    keys = {"trainer.learning_rate": 1e-5, "trainer.device": "cpu", "engine.max_model_len": length}
    config = load_config(None, keys | given | {"trainer.num_ranks": world.size})
    tokens = config.trainer.max_tokens_per_microbatch
    stepper = make_stepper(config, world, model_dir)
    states = [t for s in stepper.optimizer.state.values() for t in s.values()]
    kept = sum(map(bytes_of, stepper.policy.model.parameters()))
    kept += sum(bytes_of(t) for t in states if t.numel() > 1)
    rng = np.random.default_rng(0)
    count = world.size * MICRO_BATCHES * (tokens // length)
    items = [BatchRow(row(rng, length), number) for number in range(count)]
    groups = [f"g{number * world.size // count}" for number in range(count)]
    rewards = [float(number % 2) for number in range(count)]
    shards = make_shards(items, rewards, groups, num_minibatches=1, num_ranks=world.size)
    peak = peak_bytes(lambda: stepper.train_shard(shards[world.rank], Phases()))
    return {"kept": kept, "peak": kept + peak}


def row(rng: np.random.Generator, length: int) -> Row:
    """A row of which half of the tokens train."""
    drawn = make_row(rng, length, temperature=1.0, vocab=VOCAB)
    return with_behavior(drawn, np.full(drawn.num_trained, -7.6))


def main(model_dir: str, out: str, rank: str, size: str, options: str) -> None:
    torch.set_num_threads(1)
    wait_for_frees()
    place = {"rank": int(rank), "size": int(size)}
    with join_world(**place, rendezvous=f"file://{out}/meet", timeout_s=600) as world:
        found = [measured(Path(model_dir), world, each) for each in json.loads(options)]
    Path(out, f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
