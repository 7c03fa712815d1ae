"""One of the ranks of test_megatron.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "trainer"))
sys.path.insert(0, str(Path(__file__).parents[1] / "contracts"))

from arl_megatron.trainer import load
from trainer_samples import make_items, make_shards, reproducible
from trainers_child import KEYS, save

from agentgym_rl.config import Config, load_config
from agentgym_rl.trainer import Phases, join_world


def config() -> Config:
    return load_config(overrides=KEYS)


def train(trainer: Any, step: int) -> dict[str, float]:
    world = trainer.policy.world
    parts = world.size // world.unit
    shards = make_shards(*make_items(num_groups=3, step=step), step=step, num_ranks=parts)
    return reproducible(trainer.train_shard(shards[world.part], Phases()))


def main(model_dir: Path, out: Path, rank: int, size: int, unit: int) -> None:
    torch.set_num_threads(1)
    meet = f"file://{out}/meet" if size > 1 else ""
    with join_world(rank=rank, size=size, unit=unit, rendezvous=meet, timeout_s=120) as world:
        trainer = load(config(), world, model_dir)
        metrics = [train(trainer, step) for step in (0, 1)]
        save(trainer, out, 2)
        metrics += [train(trainer, step) for step in (2, 3)]
        trainer.export(out / "export", model_dir=model_dir)
    (out / f"metrics-{rank}.json").write_text(json.dumps(metrics))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
