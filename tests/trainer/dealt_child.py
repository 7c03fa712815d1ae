"""One of several trainer ranks, for test_dealing.py: it trains odd batches as `split_batch` deals
them, in float64, and leaves its metrics and weights."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from rank_child import make_stepper
from trainer_samples import VOCAB, make_row, replaced, reproducible, wide_norm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from agentgym_rl.config import TrainerConfig, load_config
from agentgym_rl.controller import split_batch
from agentgym_rl.core import Group, Outcome, Trajectory
from agentgym_rl.trainer import Phases, World, join_world

Draw = np.random.Generator
STEPS = 2


def made(
    draw: Draw,
    number: int,
    rows: Sequence[Sequence[int]],
    *,
    share: int = 0,
    masked: Sequence[int] = (),
    level: bool = False,
) -> Group:
    """A group whose members have rows of these lengths. All begin with the same `share` tokens, no
    token of the `masked` members trains, and with `level` all rewards are equal."""
    head = draw.integers(0, VOCAB, share).astype(np.int32)
    members: list[Trajectory] = []
    for member, lengths in enumerate(rows):
        its = [make_row(draw, length) for length in lengths]
        its = [replaced(r, tokens=np.concatenate((head, r.tokens[share:]))) for r in its]
        if member in masked:
            its = [replaced(r, loss_mask=np.zeros(len(r), np.bool_)) for r in its]
        reward = 1.0 if level else float(member % 2) + 0.25 * (member % 3)
        name = f"{number}.{member}"
        members.append(Trajectory(name, f"g{number}", "t", Outcome.COMPLETED, reward, its))
    return Group(f"g{number}", "t", members, index=number)


def few(draw: Draw) -> list[Group]:
    return [made(draw, 0, [[12], [9], [17]])]


def giant(draw: Draw) -> list[Group]:
    return [made(draw, 0, [[110], [9]]), *(made(draw, n, [[8], [8]]) for n in range(1, 4))]


def empty(draw: Draw) -> list[Group]:
    silent = made(draw, 2, [[12], [12], [15]], masked=(0, 1))
    level = made(draw, 3, [[10], [20], [30]], level=True)
    return [made(draw, 0, [[14], [], [14]]), made(draw, 1, [[], []]), silent, level]


def many(draw: Draw) -> list[Group]:
    sizes = [[int(n) for n in draw.integers(8, 60, draw.integers(1, 4))] for _ in range(20)]
    return [made(draw, n, sizes[4 * n : 4 * n + 4]) for n in range(5)]


def trees(draw: Draw) -> list[Group]:
    sizes = [[int(n) for n in draw.integers(30, 60, 1 + k % 2)] for k in range(12)]
    return [made(draw, n, sizes[4 * n : 4 * n + 4], share=24) for n in range(3)]


def prompts(draw: Draw) -> list[Group]:
    """Two ranks have a group each. One needs two micro-batches; the other one can divide its rows
    only if it computes their common beginning, most of their tokens, twice."""
    return [made(draw, 0, [[108]] * 6, share=100), made(draw, 1, [[103], [104]])]


JOBS: Mapping[str, tuple[Callable[[Draw], list[Group]], int, Mapping[str, Any], Mapping[str, Any]]]
JOBS = {
    "more minibatches than rows": (few, 5, {}, {}),
    "one giant row": (giant, 2, {"algo.aggregation": "sequence"}, {}),
    "rows without tokens": (empty, 3, {"algo.aggregation": "constant"}, {}),
    "sequences": (many, 2, {"algo.aggregation": "sequence", "algo.entropy_coef": 0.01}, {}),
    "tokens, twice": (many, 3, {"algo.aggregation": "token"}, {"epochs": 2}),
    "of rows": (many, 2, {"preset": "gspo"}, {}),
    "trees": (trees, 2, {"algo.aggregation": "sequence"}, {}),
    "trees, whitened": (trees, 5, {"algo.whiten.over": "tokens"}, {}),
    "rows that are mostly prompt": (prompts, 1, {}, {"max_tokens_per_microbatch": 200}),
    "critic": (trees, 3, {"preset": "ppo-critic"}, {}),
    "moment mask": (many, 2, {"algo.behavior_correction.type": "moment_mask"}, {}),
}
"""By name: the batches, their minibatches, keys of the objective, and of the trainer."""


def trained(model_dir: Path, world: World, only: Sequence[str] = ()) -> dict[str, Any]:
    """Return the metrics of each job's batches, and its weights in the end (rank 0); `only` some
    jobs."""
    found: dict[str, Any] = {}
    with mock.patch.object(Qwen3RMSNorm, "forward", wide_norm):
        for number, (name, (batch, minibatches, keys, more)) in enumerate(JOBS.items()):
            if only and name not in only:
                continue
            algo = load_config(None, {**keys, "steps": 99}).algo
            at_once = algo.critic.model_copy(update={"warmup_steps": 0})
            algo = algo.model_copy(update={"critic": at_once})
            given: dict[str, Any] = {"max_tokens_per_microbatch": 110, **more}
            trainer = TrainerConfig(
                learning_rate=1e-3, num_minibatches=minibatches, num_ranks=world.size, **given
            )
            stepper = make_stepper(model_dir, world, algo, trainer=trainer)
            metrics: list[dict[str, float]] = []
            idle: list[float | None] = []
            for step in range(STEPS):
                shards = split_batch(
                    batch(np.random.default_rng([number, step])),
                    step=step,
                    num_ranks=world.size,
                    num_minibatches=minibatches,
                )
                its = stepper.train_shard(shards[world.rank], Phases())
                assert ("trainer/idle_share" in its) == (world.size > 1)
                idle.append(its.get("trainer/idle_share"))
                metrics.append(reproducible(its))
            state = stepper.policy.trained_state()
            weights = {name: tensor.double().flatten().tolist() for name, tensor in state.items()}
            found[name] = {"metrics": metrics, "weights": weights, "idle": idle}
    return found


def main(model_dir: Path, out: Path, rank: int, size: int, *only: str) -> None:
    torch.set_num_threads(1)
    meet = f"file://{out}/meet-{size}"
    with join_world(rank=rank, size=size, rendezvous=meet, timeout_s=300) as world:
        found = trained(model_dir, world, only)
    (out / f"dealt-{size}-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
