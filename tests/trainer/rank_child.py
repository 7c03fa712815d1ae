"""One of two trainer ranks, for test_ranks.py: trains, checkpoints, and leaves what it got."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from arl_lora.keys import LoraConfig
from arl_objectives.clamp import ClampCorrection
from arl_objectives.critic import Critic, ValueModel
from arl_objectives.keys.teacher import TeacherConfig
from arl_objectives.reference import Reference
from arl_objectives.teachers import TeacherTerm
from torch.distributed.device_mesh import init_device_mesh
from trainer_samples import (
    make_items,
    make_shards,
    make_tree,
    recipe,
    reproducible,
    save_checkpoint,
    wide_norm,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from agentgym_rl.algo import all_terms
from agentgym_rl.config import (
    AlgoConfig,
    TrainerConfig,
    load_config,
    preset_names,
)
from agentgym_rl.core.token_records import Experts
from agentgym_rl.trainer import Phases, Policy, Stepper, World, join_world, make_optimizer
from agentgym_rl.trainer.policy import PolicyBase

NUM_STEPS = 3
TRAINER = TrainerConfig(learning_rate=1e-3, num_minibatches=2, max_tokens_per_microbatch=48)


ALGO = AlgoConfig(aggregation="sequence", behavior_correction=ClampCorrection())


OPTIONS: dict[str, dict[str, Any]] = {
    "replicas": {"num_replicas": 2},
    "activation checkpointing": {"activation_checkpointing": True},
    "CPU offload": {"cpu_offload": True},
    "chunked head": {"head_chunk_tokens": 5},
    "all together": {
        "num_replicas": 2,
        "activation_checkpointing": True,
        "cpu_offload": True,
        "head_chunk_tokens": 5,
    },
}
"""Of the trainer, by which two ranks compute what one computes without any of them."""


def make_stepper(
    model_dir: Path,
    world: World,
    algo: AlgoConfig = ALGO,
    *,
    trainer: TrainerConfig = TRAINER,
    bfloat16: bool = False,
    lora: LoraConfig | None = None,
    teacher_dir: Path | None = None,
) -> Stepper:
    how: dict[str, Any] = {"master_dtype": torch.float64, "trainer": trainer}
    if bfloat16:
        how |= {"master_dtype": torch.float32, "compute_dtype": "bfloat16"}
    policy = Policy.load(model_dir, world, adapter=lora, **how)
    terms = all_terms(algo)
    for term in terms:
        if isinstance(term, Reference) and lora is not None:
            term.use(PolicyBase(policy), policy)
        elif isinstance(term, Reference):
            term.use(Policy.load(model_dir, world, frozen=True, **how), policy)
        if isinstance(term, TeacherTerm):
            teacher = teacher_dir and Policy.load(teacher_dir, world, frozen=True, **how)
            term.use([teacher], policy)
        if isinstance(term, Critic):
            term.use(ValueModel.load(model_dir, world, **how), trainer, num_steps=NUM_STEPS + 1)
    return Stepper(
        policy,
        make_optimizer(policy.model, trainer),
        algo=algo,
        trainer=trainer,
        num_steps=NUM_STEPS + 1,
        seed=1,
        terms=terms,
    )


def train(stepper: Stepper, step: int) -> dict[str, float]:
    """Metrics, but how fast it was. Nine episodes: two ranks never have as many rows."""
    world = stepper.policy.world
    shards = make_shards(*make_items(num_groups=3, step=step), step=step, num_ranks=world.size)
    metrics = stepper.train_shard(shards[world.rank], Phases())
    return reproducible(metrics)


def train_tree(stepper: Stepper, step: int) -> dict[str, float]:
    """All metrics of a batch of rows with common beginnings."""
    world = stepper.policy.world
    shards = make_shards(*make_tree(step), step=step, num_ranks=world.size)
    return stepper.train_shard(shards[world.rank], Phases())


def train_trees(model_dir: Path, world: World, *, share: bool) -> list[dict[str, float]]:
    """Two steps of policy and critic on such batches, with an entropy bonus and a chunked head:
    of all weights, and of an adapter."""
    algo = load_config(None, {"preset": "ppo-critic", "algo.entropy_coef": 0.01}).algo
    trainer = TRAINER.model_copy(update={"head_chunk_tokens": 5, "max_tokens_per_microbatch": 80})
    with mock.patch.object(Qwen3RMSNorm, "forward", wide_norm):
        metrics: list[dict[str, float]] = []
        for lora in (None, LoraConfig(rank=4, alpha=8)):
            stepper = make_stepper(model_dir, world, algo, trainer=trainer, lora=lora)
            for model in stepper._models:
                model.shares_prefixes = share
            metrics += [reproducible(train_tree(stepper, step)) for step in range(2)]
        return metrics


def pass_by(stepper: Stepper, step: int, *, masked: bool = False) -> dict[str, float]:
    """Train a batch that teaches nothing: its rewards are equal, or (`masked`) no token trains.

    The version is looked at, as engines are given it: torch cannot free what numpy has seen.
    """
    world = stepper.policy.world
    items, rewards, groups = make_items(num_groups=3, step=step)
    if masked:
        items = [
            replace(it, row=replace(it.row, loss_mask=np.zeros(len(it.row), np.bool_)))
            for it in items
        ]
    shards = make_shards(items, [1.0] * len(rewards), groups, step=step, num_ranks=world.size)
    metrics = stepper.train_shard(shards[world.rank], Phases())
    for tensor in stepper.policy.trained_state().values():
        tensor.numpy()
    return reproducible(metrics)


def train_preset(model_dir: Path, world: World, name: str) -> list[dict[str, float]]:
    """A step of a preset, whose second minibatch has ratios other than 1. With a reference or a
    critic two: in the second, policy and reference differ."""
    stepper = make_stepper(model_dir, world, recipe(name))
    return [train(stepper, step) for step in range(2 if stepper.model_terms else 1)]


def train_taught(model_dir: Path, teacher_dir: Path, world: World) -> list[dict[str, float]]:
    """Two steps with a teacher of another architecture, which teaches two of three groups."""
    teacher = {"models": ["teacher"], "horizon": "row", "reward_coef": 0.5}
    algo = ALGO.model_copy(update={"teacher": TeacherConfig.model_validate(teacher)})
    stepper = make_stepper(model_dir, world, algo, teacher_dir=teacher_dir)
    metrics: list[dict[str, float]] = []
    for step in range(2):
        items, rewards, groups = make_items(num_groups=3, step=step)
        shards = make_shards(items, rewards, groups, step=step, num_ranks=world.size)
        weights = [[2.0 * (group != "g2")] for group in groups]
        shard = replace(shards[world.rank], of_tasks={"teacher": weights})
        metrics.append(reproducible(stepper.train_shard(shard, Phases())))
    return metrics


def train_critic(
    model_dir: Path, world: World, options: Mapping[str, Any], *, bfloat16: bool = False
) -> list[dict[str, float]]:
    """Two steps of policy and critic, with an entropy bonus, under some options."""
    algo = load_config(None, {"preset": "ppo-critic", "algo.entropy_coef": 0.01}).algo
    trainer = TRAINER.model_copy(update={**options, "num_ranks": world.size})
    if trainer.num_replicas > 1:
        shape = (trainer.num_replicas, world.size // trainer.num_replicas)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        world = replace(world, mesh=mesh)
    stepper = make_stepper(model_dir, world, algo, trainer=trainer, bfloat16=bfloat16)
    return [train(stepper, step) for step in range(2)]


def train_lora(model_dir: Path, world: World) -> tuple[list[dict[str, float]], Stepper]:
    """Two steps of an adapter that stays close to its base."""
    kl = {"algo.kl.coef": 0.1, "algo.kl.reference": "initial", "algo.kl.placement": "reward"}
    algo = ALGO.model_copy(update={"kl": load_config(None, kl).algo.kl})
    stepper = make_stepper(model_dir, world, algo, lora=LoraConfig(rank=4, alpha=8))
    return [train(stepper, step) for step in range(2)], stepper


def train_experts(model_dir: Path, world: World) -> list[dict[str, float]]:
    """Two steps of a mixture of experts, with recorded experts of most rows."""
    policy = Policy.load(model_dir, world, trainer=TRAINER, routing_replay="on")
    optimizer = make_optimizer(policy.model, TRAINER)
    stepper = Stepper(
        policy, optimizer, algo=ALGO, trainer=TRAINER, num_steps=NUM_STEPS + 1, seed=1
    )
    metrics: list[dict[str, float]] = []
    for step in range(2):
        items, *others = make_items(num_groups=3, step=step)
        rng = np.random.default_rng(step)
        ids = [rng.permuted(np.tile(np.arange(8), (len(it.row), 3, 1)), axis=2) for it in items]
        items = [
            replace(it, row=replace(it.row, experts=Experts(some[..., :2].astype(np.int16))))
            if number % 4
            else it
            for number, (it, some) in enumerate(zip(items, ids, strict=True))
        ]
        shards = make_shards(items, *others, step=step, num_ranks=world.size)
        metrics.append(reproducible(stepper.train_shard(shards[world.rank], Phases())))
    return metrics


MOVING: dict[str, dict[str, Any]] = {"sharded": {}, "replicas": {"num_replicas": 2}}
"""The trainers of `train_moving`."""


def moving_stepper(model_dir: Path, world: World, **options: Any) -> Stepper:
    """A stepper of Muon, whose reference model follows the policy, with metrics of layers."""
    keys = {"coef": 0.1, "reference": "initial", "refresh_every": 1, "ema": 0.5}
    kl = load_config({"algo": {"kl": keys}}).algo.kl
    more = {"optimizer": "muon", "layer_metrics": True, "weight_decay": 0.1, **options}
    trainer = TRAINER.model_copy(update={**more, "num_ranks": world.size})
    if trainer.num_replicas > 1 and world.size > 1:
        shape = (trainer.num_replicas, world.size // trainer.num_replicas)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        world = replace(world, mesh=mesh)
    return make_stepper(model_dir, world, ALGO.model_copy(update={"kl": kl}), trainer=trainer)


def main_moving(model_dir: Path, out: Path, rank: int) -> None:
    torch.set_num_threads(1)
    with join_world(rank=rank, size=2, rendezvous=f"file://{out}/meet", timeout_s=60) as world:
        metrics: dict[str, list[dict[str, float]]] = {}
        for name, options in MOVING.items():
            stepper = moving_stepper(model_dir, world, **options)
            metrics[name] = [train(stepper, step) for step in range(NUM_STEPS)]
            save_checkpoint(
                out / name, stepper.policy, stepper.optimizer,
                step=NUM_STEPS, config_hash="", keep=1, terms=stepper.model_terms,
            )  # fmt: skip
    (out / f"moving-{rank}.json").write_text(json.dumps(metrics))


def main_experts(model_dir: Path, out: Path, rank: int) -> None:
    torch.set_num_threads(1)
    with join_world(rank=rank, size=2, rendezvous=f"file://{out}/meet", timeout_s=300) as world:
        metrics = train_experts(model_dir, world)
    (out / f"experts-{rank}.json").write_text(json.dumps(metrics))


def main(model_dir: Path, out: Path, rank: int) -> None:
    torch.set_num_threads(1)
    with join_world(rank=rank, size=2, rendezvous=f"file://{out}/meet", timeout_s=300) as world:
        stepper = make_stepper(model_dir, world)
        metrics = [train(stepper, step) for step in range(NUM_STEPS)]
        save_checkpoint(
            out / "checkpoints",
            stepper.policy,
            stepper.optimizer,
            step=NUM_STEPS,
            config_hash="h",
            keep=1,
        )
        state = stepper.policy.full_state()
        (out / f"metrics-{rank}.json").write_text(json.dumps(metrics))
        presets = {name: train_preset(model_dir, world, name) for name in preset_names()}
        (out / f"presets-{rank}.json").write_text(json.dumps(presets))
        options = {name: train_critic(model_dir, world, its) for name, its in OPTIONS.items()}
        options["bfloat16"] = train_critic(model_dir, world, {}, bfloat16=True)
        (out / f"options-{rank}.json").write_text(json.dumps(options))
        for name, lora in (("all", None), ("adapter", LoraConfig(rank=4, alpha=8))):
            idle = make_stepper(model_dir, world, lora=lora)
            pass_by(idle, 0)
            how: Any = {"step": 1, "config_hash": "h", "keep": 1}
            save_checkpoint(out / f"idle-{name}", idle.policy, idle.optimizer, **how)
            train(idle, 1)
            pass_by(idle, 2, masked=True)
            how["step"] = 3
            save_checkpoint(out / f"idle-{name}", idle.policy, idle.optimizer, **how)
        (out / f"trees-{rank}.json").write_text(
            json.dumps(train_trees(model_dir, world, share=True))
        )
        recurrent = make_stepper(out / "recurrent", world)
        metrics = [train(recurrent, step) for step in range(2)]
        (out / f"recurrent-{rank}.json").write_text(json.dumps(metrics))
        metrics = train_taught(model_dir, out / "recurrent", world)
        (out / f"taught-{rank}.json").write_text(json.dumps(metrics))
        metrics, stepper = train_lora(model_dir, world)
        (out / f"lora-{rank}.json").write_text(json.dumps(metrics))
        adapter = stepper.policy.trained_state()
        save_checkpoint(
            out / "lora",
            stepper.policy,
            stepper.optimizer,
            step=2,
            config_hash="h",
            keep=1,
        )
        if rank == 0:
            torch.save(state, out / "state.pt")
            torch.save(adapter, out / "adapter.pt")
        assert bool(state) == (rank == 0)


if __name__ == "__main__":
    acts = {"experts": main_experts, "moving": main_moving}
    act = next((acts[name] for name in sys.argv[4:]), main)
    act(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
