"""One of the ranks of test_extensions_trainers.py: trains the same batches with two backends."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "trainer"))

from trainer_samples import make_items, make_shards, reproducible

from agentgym_rl.config import load_config
from agentgym_rl.storage import Retention
from agentgym_rl.trainer import Phases, World, join_world, make_stepper
from agentgym_rl.trainer.backend import TrainerBackend
from tests.kit import copies

KEYS = {
    "steps": 4,
    "algo.entropy_coef": 0.01,
    "engine.max_model_len": 48,
    "trainer.max_tokens_per_microbatch": 48,
    "trainer.num_minibatches": 2,
    "trainer.learning_rate": 1e-3,
    "trainer.mismatch_stop": 1e6,
}


def train(trainer: TrainerBackend, step: int) -> dict[str, float]:
    """Nine episodes: two ranks never have as many rows."""
    world = trainer.policy.world
    shards = make_shards(*make_items(num_groups=3, step=step), step=step, num_ranks=world.size)
    return reproducible(trainer.train_shard(shards[world.rank], Phases()))


def save(trainer: TrainerBackend, folder: Path, step: int) -> Path:
    saves = trainer.checkpoints(folder, config_hash="", retention=Retention(keep=1))
    saves.begin(step)
    saves.reported({})
    saves.finish()
    saves.close()
    trainer.policy.world.barrier()
    return folder / f"step-{step}"


def run(model_dir: Path, out: Path, world: World) -> list[list[dict[str, float]]]:
    """The metrics of each backend, and of one that goes on from the other's second batch."""
    config, found = load_config(overrides=KEYS), []
    for load in (make_stepper, copies.load):
        trainer = load(config, world, model_dir)
        metrics = [train(trainer, step) for step in range(2)]
        checkpoint = save(trainer, out / load.__name__, 2)
        found.append([*metrics, *(train(trainer, step) for step in (2, 3))])
        again = load(config, world, model_dir)
        assert again.restore(checkpoint).step == 2
        found.append([train(again, step) for step in (2, 3)])
    return found


def main(model_dir: Path, out: Path, rank: int) -> None:
    torch.set_num_threads(1)
    with join_world(rank=rank, size=2, rendezvous=f"file://{out}/meet", timeout_s=120) as world:
        (out / f"metrics-{rank}.json").write_text(json.dumps(run(model_dir, out, world)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
