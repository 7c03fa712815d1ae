"""What is compared between ranks and one rank: three batches of a training, by its features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from arl_lora.keys import LoraConfig
from arl_objectives.critic import Critic, ValueModel
from arl_objectives.reference import Reference
from arl_objectives.teachers import TeacherTerm
from mesh_models import VOCAB
from torch import Tensor
from trainer_samples import make_items, make_shards, make_tree, recipe, replaced, reproducible

from agentgym_rl.algo import Tally, all_terms
from agentgym_rl.config import TrainerConfig, load_config, preset_names
from agentgym_rl.core import BatchRow, BatchShard, Choices
from agentgym_rl.core.token_records import ALL, FORCED, Experts, packed_set
from agentgym_rl.trainer import (
    PackedModel,
    Phases,
    Policy,
    ShardTokens,
    Stepper,
    World,
    frozen_pass,
    make_optimizer,
    packed,
    step,
)
from agentgym_rl.trainer.policy import PolicyBase
from agentgym_rl.trainer.sharding import Gathering

NUM_BATCHES = 3
TRAINER = TrainerConfig(learning_rate=1e-3, num_minibatches=2, max_tokens_per_microbatch=48)
LORA = LoraConfig(rank=4, alpha=8)
Items = tuple[list[BatchRow], list[float], list[str]]


@dataclass(frozen=True)
class Feature:
    """A training, on one rank or on several."""

    model: str = "qwen3"
    trainer: Mapping[str, Any] = field(default_factory=dict)
    algo: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the configuration."""
    preset: str = ""
    lora: LoraConfig | None = None
    teacher: str = ""
    replay: bool = False
    """Whether rows have recorded experts."""
    items: Callable[[int], Items] = lambda step: make_items(num_groups=3, step=step)
    light: bool = False
    half: bool = False
    """Whether to compute in bfloat16."""
    bound: float = 1e-9
    num_batches: int = NUM_BATCHES

    def batch(self, number: int) -> Items:
        """The rows, rewards and groups of a batch."""
        items, rewards, groups = self.items(number)
        return (_routed(items, number) if self.replay else items), rewards, groups


def _routed(items: Sequence[BatchRow], number: int) -> list[BatchRow]:
    """Rows with recorded experts, but for every fourth."""
    rng = np.random.default_rng(number)
    found: list[BatchRow] = []
    for place, it in enumerate(items):
        ids = rng.permuted(np.tile(np.arange(8), (len(it.row), 2, 1)), axis=2)[..., :2]
        experts = Experts(ids.astype(np.int16)) if place % 4 else None
        found.append(replace(it, row=replace(it.row, experts=experts)))
    return found


def make_choices(number: int) -> Items:
    """A batch whose tokens were drawn from sets: every third from a few, every fifth forced."""
    items, *others = make_items(num_groups=3, step=number)
    rng = np.random.default_rng([3, number])
    found: list[BatchRow] = []
    for it in items:
        row = it.row
        index = np.full(len(row), ALL, np.int32)
        sets: list[bytes] = []
        for place in np.flatnonzero(row.loss_mask):
            if place % 5 == 0:
                index[place] = FORCED
            elif place % 3 == 0:
                mask = np.zeros(VOCAB, np.bool_)
                mask[[row.tokens[place], *rng.integers(0, VOCAB, 5)]] = True
                index[place] = len(sets)
                sets.append(packed_set(np.packbits(mask, bitorder="little").tobytes()))
        row = replace(row, choices=Choices(index, tuple(sets)))
        trained = row.loss_mask & (index != FORCED)
        row = replaced(
            row,
            loss_mask=trained,
            temperatures=np.where(trained, row.temperatures, 0).astype(np.float32),
        )
        found.append(replace(it, row=row))
    return found, *others


_LONG = {"max_tokens_per_microbatch": 80}
_CRITIC = {"preset": "ppo-critic", "algo.entropy_coef": 0.01}
_KL = {"algo.kl.coef": 0.1, "algo.kl.reference": "initial"}
_MOVING = {**_KL, "algo.kl.refresh_every": 1, "algo.kl.ema": 0.5}

FEATURES: Mapping[str, Feature] = {
    "plain": Feature(),
    "LoRA": Feature(lora=LORA),
    "critic and entropy bonus": Feature(algo=_CRITIC),
    "critic, untied": Feature("untied", algo=_CRITIC),
    "reference": Feature(algo=_KL),
    "moving reference": Feature(algo=_MOVING),
    "LoRA and its base as reference": Feature(
        algo={**_KL, "algo.kl.placement": "reward"}, lora=LORA
    ),
    "teacher": Feature(algo={"algo.teacher.horizon": "row"}, teacher="llama"),
    "likeliest tokens of a teacher": Feature(
        algo={"algo.teacher.placement": "loss", "algo.teacher.top_k": 7}, teacher="untied"
    ),
    "activation checkpointing": Feature(trainer={"activation_checkpointing": True}),
    "light blocks": Feature(light=True),
    "CPU offload": Feature(trainer={"cpu_offload": True}),
    "Muon": Feature(trainer={"optimizer": "muon", "weight_decay": 0.1}),
    "Muon of joined matrices": Feature("phi3", trainer={"optimizer": "muon"}),
    "Muon and LoRA": Feature(trainer={"optimizer": "muon"}, lora=LORA),
    "norms of layers": Feature(trainer={"layer_metrics": True}),
    "chunked head": Feature(trainer={"head_chunk_tokens": 5}),
    "shared beginnings": Feature(trainer=_LONG, items=make_tree),
    "shared beginnings, critic, LoRA": Feature(
        trainer=_LONG, algo=_CRITIC, items=make_tree, lora=LORA
    ),
    "windows and shared beginnings": Feature("windows, two heads", trainer=_LONG, items=make_tree),
    "two heads and shared beginnings": Feature("two heads", trainer=_LONG, items=make_tree),
    "forced tokens and sets": Feature(items=make_choices, algo={"algo.entropy_coef": 0.01}),
    "epochs and micro-batches": Feature(
        trainer={"epochs": 2, "max_tokens_per_microbatch": 24, "num_minibatches": 2}
    ),
    "experts replayed": Feature("qwen3_moe", replay=True),
    "experts, LoRA": Feature(
        "qwen3_moe",
        lora=LORA.model_copy(update={"target_modules": ("q_proj", "v_proj", "o_proj")}),
    ),
    "experts, Muon": Feature("qwen3_moe", trainer={"optimizer": "muon"}),
    "experts, critic": Feature("qwen3_moe", algo=_CRITIC),
    "experts, checkpointing": Feature("gpt_oss", trainer={"activation_checkpointing": True}),
    "experts, light blocks": Feature("qwen3_moe", light=True),
    "experts, offload": Feature("qwen3_moe", trainer={"cpu_offload": True}),
    "bfloat16": Feature(half=True, bound=0.2),
    "bfloat16, LoRA": Feature(half=True, bound=0.2, lora=LORA),
    "bfloat16, biases": Feature("phi", half=True, bound=0.2),
    **{
        name: Feature(name)
        for name in ("untied", "vocabulary 41", "vocabulary 43, untied", "padding", "odd width")
    },
    **{
        name: Feature(name)
        for name in (
            "six heads",
            "six experts",
            "phi, tied",
            "recurrent",
            "sinks, two heads",
        )  # refused
    },
    **{
        name: Feature(name)
        for name in (
            *("llama", "mistral", "qwen2", "smollm3", "gemma3_text", "granite", "phi", "phi3"),
            *("qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3", "gpt2"),
        )
    },
    **{f"preset {name}": Feature(preset=name, num_batches=2) for name in preset_names()},
}


def make_stepper(feature: Feature, models: Path, world: World, mesh: Mapping[str, Any]) -> Stepper:
    """The stepper of a feature, whose models are in `models`."""
    trainer = TRAINER.model_copy(update={**feature.trainer, **mesh, "num_ranks": world.size})
    how: dict[str, Any] = {"master_dtype": torch.float64, "trainer": trainer}
    if feature.half:
        how |= {"master_dtype": torch.float32, "compute_dtype": "bfloat16"}
    keys = dict(feature.algo)
    if feature.teacher:
        keys["algo.teacher.models"] = ["teacher"]
    algo = recipe(feature.preset) if feature.preset else load_config(None, keys).algo
    folder = models / feature.model
    with ExitStack() as patches:
        if feature.light:
            patches.enter_context(mock.patch.object(packed, "_ROOM", 0))
            patches.enter_context(mock.patch.object(packed, "_SHARE", 0.0))
        policy = Policy.load(
            folder,
            world,
            adapter=feature.lora,
            routing_replay="on" if feature.replay else "off",
            **how,
        )
        assert policy._light == feature.light
    terms = all_terms(algo)
    for term in terms:
        if isinstance(term, Reference) and feature.lora:
            term.use(PolicyBase(policy), policy)
        elif isinstance(term, Reference):
            term.use(Policy.load(folder, world, frozen=True, **how), policy)
        if isinstance(term, TeacherTerm):
            term.use([Policy.load(models / feature.teacher, world, frozen=True, **how)], policy)
        if isinstance(term, Critic):
            term.use(ValueModel.load(folder, world, **how), trainer, num_steps=NUM_BATCHES + 1)
    return Stepper(
        policy,
        make_optimizer(policy.model, trainer),
        algo=algo,
        trainer=trainer,
        num_steps=NUM_BATCHES + 1,
        seed=1,
        terms=terms,
    )


def shard_of(feature: Feature, number: int, world: World) -> BatchShard:
    """A rank's part of a batch."""
    parts = world.size // world.unit
    items, rewards, groups = feature.batch(number)
    shard = make_shards(items, rewards, groups, step=number, num_ranks=parts)[world.part]
    if feature.teacher:  # two of three groups
        weights = [[2.0 * (group != "g2")] for group in groups]
        shard = replace(shard, of_tasks={"teacher": weights})
    return shard


def train(stepper: Stepper, feature: Feature, number: int) -> dict[str, float]:
    """The metrics of a batch."""
    shard = shard_of(feature, number, stepper.policy.world)
    return reproducible(stepper.train_shard(shard, Phases()))


def logprobs(stepper: Stepper, feature: Feature) -> Tensor:
    """The log-probs of the trained tokens of a batch, which all parts compute."""
    shard = make_shards(*feature.batch(0), num_ranks=1)[0]
    policy = stepper.policy
    tokens = ShardTokens.from_shard(shard, vocab_size=policy.vocab_size)
    return frozen_pass(policy, policy.logprobs, tokens)


def whole(model: PackedModel, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The complete tensors on the first rank and on the last, given this rank's parts (collective):
    parameters, or what belongs to them."""
    world = model.world
    cuts = model.parallel.cuts if model.parallel else {}
    gathering = Gathering(world)
    found: dict[str, Tensor] = {}
    for owner in sorted({0, world.size - 1}):
        for name, tensor in tensors.items():
            its = gathering.gather(owner, tensor, cuts.get(name))
            if world.rank == owner:
                found[name] = its.clone()
    gathering.finish()
    return found


def trained_models(stepper: Stepper) -> dict[str, tuple[PackedModel, torch.optim.Optimizer]]:
    """The trained models, with their optimizers."""
    found: dict[str, tuple[PackedModel, torch.optim.Optimizer]] = {
        "": (stepper.policy, stepper.optimizer)
    }
    for term in stepper.model_terms:
        for optimizer, model in zip(term.optimizers, term.models, strict=False):
            found["critic "] = (model, optimizer)
    return found


def state(stepper: Stepper) -> dict[str, Tensor]:
    """The complete trained weights, and all that optimizers keep for them (collective)."""
    found: dict[str, Tensor] = {}
    for prefix, (model, optimizer) in trained_models(stepper).items():
        model.reshard()
        named = {n: p for n, p in model.model.named_parameters() if p.requires_grad}
        parts: dict[str, dict[str, Tensor]] = {"weight": dict(named)}
        for name, p in named.items():
            for key, value in optimizer.state[p].items():
                parts.setdefault(key, {})[name] = value
        for key, tensors in parts.items():
            its = tensors if key == "step" else whole(model, tensors)
            found |= {f"{prefix}{key} {name}": tensor for name, tensor in its.items()}
    return found


def compute(
    feature: Feature, models: Path, world: World, mesh: Mapping[str, Any]
) -> dict[str, Any]:
    """What is compared."""
    stepper = make_stepper(feature, models, world, mesh)
    policy = stepper.policy
    its: dict[str, Any] = {"logprobs": logprobs(stepper, feature)}
    policy.tally_routing(Tally())  # the tokens of that pass are none of a batch
    take = step.take_step

    def noting(optimizer: torch.optim.Optimizer, max_norm: float) -> float:
        if "gradients" not in its:
            named = policy.model.named_parameters()
            grads = {n: p.grad for n, p in named if p.grad is not None}
            its["gradients"] = whole(policy, grads)
        return take(optimizer, max_norm)

    with mock.patch.object(step, "take_step", noting):
        metrics = [train(stepper, feature, number) for number in range(feature.num_batches)]
    its["metrics"] = {f"{n} {k}": v for n, found in enumerate(metrics) for k, v in found.items()}
    its["weights"] = {k: v for k, v in state(stepper).items() if "weight " in k}
    return its


# ------------------------------------------------------------------ comparison
COLUMNS = ("loss", "log-prob", "gradient", "norm", "weights")
_LEAST = 1e-2
"""The least number that a difference of metrics is relative to."""
_LEAST_SHARE = 1e-6


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    """The largest relative difference in each column."""
    norms = {k for k in one["metrics"] if "grad_norm" in k}
    mine, theirs = one["metrics"], other["metrics"]
    assert mine.keys() == theirs.keys()
    return {
        "loss": max(_apart(mine[k], theirs[k]) for k in mine if k not in norms),
        "log-prob": _far(one["logprobs"], other["logprobs"], 0.0),
        "gradient": _farthest(one["gradients"], other["gradients"]),
        "norm": max(_apart(mine[k], theirs[k]) for k in norms),
        "weights": _farthest(one["weights"], other["weights"]),
    }


def _apart(x: float, y: float) -> float:
    return 0.0 if x == y or (x != x and y != y) else abs(x - y) / max(abs(x), _LEAST)


def _farthest(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    if theirs and theirs.keys() != mine.keys():
        return float("inf")
    most = max(float(x.abs().max()) for x in mine.values())
    return max((_far(mine[name], theirs[name], _LEAST_SHARE * most) for name in theirs), default=0)


def _far(x: Tensor, y: Tensor, least: float) -> float:
    assert x.shape == y.shape
    found = float((x - y).abs().max()) / max(float(x.abs().max()), least)
    return found if found == found else float("inf")
