"""One of two trainer ranks that train mixtures of experts, for test_experts.py; it leaves what it
got. All is computed in float64: models round some results to float32, which hides differences."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from arl_experts.balance import BalanceTerm
from arl_lora.keys import LoraConfig
from torch import Tensor
from trainer_samples import make_items, make_shards, make_tree, reproducible
from transformers.integrations import moe

from agentgym_rl.algo import all_terms
from agentgym_rl.config import TrainerConfig, load_config
from agentgym_rl.trainer import Phases, Policy, Stepper, World, join_world, make_optimizer

NUM_BATCHES = 2
COEF = 0.5
LORA = LoraConfig(rank=3, alpha=8)


@dataclass(frozen=True)
class Case:
    """A training, on one rank or on a mesh of two."""

    model: str = "qwen3_moe"
    mesh: str = ""
    balances: bool = True
    trees: bool = False
    trainer: Mapping[str, Any] = field(default_factory=dict)
    lora: LoraConfig | None = None


CASES: Mapping[str, Case] = {
    "ranks": Case(),
    "tokens": Case(mesh="c2"),
    "matrices": Case(mesh="t2"),
    "experts": Case(mesh="e2"),
    "experts, shared beginnings": Case(mesh="e2", trees=True),
    "tokens, checkpointing": Case("mixtral", "c2", trainer={"activation_checkpointing": True}),
    "tokens, attention sinks": Case("gpt_oss", "c2"),
    "matrices, sigmoids": Case("deepseek_v3", "t2"),
    "experts, sigmoids, no loss": Case("deepseek_v3", "e2", balances=False),
    "ranks, LoRA": Case(lora=LORA),
    "experts, LoRA": Case(mesh="e2", lora=LORA),
    "tokens, LoRA": Case("deepseek_v3", "c2", lora=LORA),
    "matrices, LoRA": Case("mixtral", "t2", lora=LORA),
    "experts, transposed, LoRA": Case("gpt_oss", "e2", lora=LORA),
}


@contextmanager
def wide() -> Iterator[None]:
    """Keep float64 where models round to float32."""
    kinds = {name: getattr(Tensor, name) for name in ("to", "float", "type")}

    def turned(x: Tensor, given: Any) -> Any:
        return torch.float64 if x.dtype == torch.float64 and given is torch.float32 else given

    def to(x: Tensor, *args: Any, **named: Any) -> Tensor:
        args = tuple(turned(x, it) for it in args)
        return kinds["to"](x, *args, **{k: turned(x, it) for k, it in named.items()})

    def softened(compute: Any) -> Any:
        def softmax(x: Tensor, *args: Any, dtype: Any = None, **named: Any) -> Tensor:
            args = tuple(turned(x, it) for it in args)
            return compute(x, *args, dtype=turned(x, dtype), **named)

        return softmax

    with ExitStack() as patches:
        for name, its in {
            "to": to,
            "float": lambda x: x if x.dtype == torch.float64 else kinds["float"](x),
            "type": lambda x, *a: kinds["type"](x, *(turned(x, it) for it in a)),
        }.items():
            patches.enter_context(mock.patch.object(Tensor, name, its))
        for home in (F, torch, Tensor):
            soft = softened(home.softmax)
            patches.enter_context(mock.patch.object(home, "softmax", soft))
        patches.enter_context(mock.patch.object(moe, "_can_use_grouped_mm", return_value=False))
        yield


def make_stepper(case: Case, folder: Path, world: World) -> Stepper:
    most = 80 if case.trees else 48
    its = {"learning_rate": 1e-3, "num_minibatches": 2, "max_tokens_per_microbatch": most}
    its |= case.trainer
    mesh = case.mesh if world.size > 1 else ""
    trainer = TrainerConfig(**its, mesh=mesh, num_ranks=world.size)
    keys = {"algo.expert_balance_coef": COEF} if case.balances else {}
    algo = load_config(None, {"algo.aggregation": "sequence", **keys}).algo
    policy = Policy.load(
        folder / case.model, world, adapter=case.lora, master_dtype=torch.float64, trainer=trainer
    )
    terms = all_terms(algo)
    for term in terms:
        if isinstance(term, BalanceTerm):
            term.use(policy)
    optimizer = make_optimizer(policy.model, trainer)
    return Stepper(
        *(policy, optimizer), algo=algo, trainer=trainer, num_steps=4, seed=1, terms=terms
    )


def train(stepper: Stepper, case: Case, step: int) -> dict[str, float]:
    """The metrics of a batch."""
    world = stepper.policy.world
    items = make_tree(step) if case.trees else make_items(num_groups=3, step=step)
    shards = make_shards(*items, step=step, num_ranks=world.size // world.unit)
    return reproducible(stepper.train_shard(shards[world.part], Phases()))


def trained(case: Case, folder: Path, world: World) -> dict[str, Any]:
    """The metrics of some batches, and the weights after them on the first rank."""
    with wide():
        stepper = make_stepper(case, folder, world)
        metrics = [train(stepper, case, step) for step in range(NUM_BATCHES)]
        return {"metrics": metrics, "weights": stepper.policy.trained_state()}


def main(folder: Path, out: Path, rank: int, *names: str) -> None:
    torch.set_num_threads(1)
    for name in names:
        case, place = CASES[name], f"file://{out}/meet-{name.replace(' ', '-')}"
        unit = TrainerConfig(mesh=case.mesh, num_ranks=2).ranks_per_row
        with join_world(rank=rank, size=2, unit=unit, rendezvous=place, timeout_s=120) as world:
            found = trained(case, folder, world)
        (out / f"{name}-{rank}.json").write_text(json.dumps(found["metrics"]))
        if rank == 0:
            torch.save(found["weights"], out / f"{name}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
