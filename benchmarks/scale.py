"""One model over 1, 2 and 4 ranks, on any mesh: the bytes that ranks receive against the formulas
of docs/parallel.md, and the time of a pass with its gradient.

Strong scaling: the same rows for all ranks together. Weak scaling: as many rows for each rank. The
ranks are processes on this machine that exchange over gloo, with one thread each, so with more
ranks than cores the time says nothing about a cluster. Bytes are counted in the calls of
torch.distributed, and hold for GPUs, too.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from arl_parallel import collectives
from arl_parallel.shape import Shape
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from agentgym_rl.algo import is_experts, pack_rows
from agentgym_rl.config import TrainerConfig
from agentgym_rl.trainer import Policy, World, join_world

from ._common import hardware, say, versions
from ._ranks import forked
from ._toy import sized
from .trainer_loops.packing import half_sampled

GOAL = "bytes that ranks receive within 2 % of the formulas"
HIDDEN, LAYERS, VOCAB, HEADS = sized((256, 4, 4096, 8), toy=(32, 2, 64, 4))
ROWS, LENGTH, TIMES = sized((8, 256, 3), toy=(4, 16, 1))
EXPERTS, CHOSEN = 8, 2
MESHES = sized(
    (
        *((1, ""), (2, ""), (4, ""), (2, "c2"), (4, "c4"), (2, "t2"), (4, "t4")),
        *((4, "c2"), (4, "t2"), (4, "c2t2")),
    ),
    toy=((1, ""), (2, "c2"), (2, "t2")),
)
OF_EXPERTS = sized(((1, ""), (2, ""), (2, "e2"), (4, "e4"), (4, "t2e2")), toy=((1, ""), (2, "e2")))

Figures = dict[str, Any]


def run() -> dict[str, Any]:
    """Measure all meshes; `met` is whether every count is near its formula."""
    rows: list[Figures] = []
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as made:
        for kind, meshes in (("dense", MESHES), ("experts", OF_EXPERTS)):
            folder = Path(made) / kind
            save_model(folder, kind)
            for size, mesh in meshes:
                for weak in (False, True) if size > 1 else (False,):
                    say(f"{kind}, {size} ranks, mesh {mesh or 'none'}{', weak' if weak else ''}")
                    rows.append(
                        {"model": kind, "ranks": size, "mesh": mesh, "weak": weak}
                        | measure(folder, size, mesh, weak=weak)
                    )
    first = {row["model"]: row["seconds"] for row in rows if row["ranks"] == 1}
    for row in rows:
        row["times_one_rank"] = round(row["seconds"] / first[row["model"]], 2)
    near = all(
        abs(row["received"][part] - expected) <= 0.02 * expected + 4096
        for row in rows
        for part, expected in row["formula"].items()
    )
    return {
        "name": "scale",
        "hardware": hardware(),
        "versions": versions(),
        "rows": rows,
        "goal": GOAL,
        "checks": {GOAL: near},
        "met": near,
    }


def save_model(folder: Path, kind: str) -> None:
    """Write a random model."""
    sizes: Figures = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 4 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "max_position_embeddings": 2 * LENGTH,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(0)
    if kind == "dense":
        Qwen3ForCausalLM(Qwen3Config(**sizes)).save_pretrained(folder)
        return
    more = {"num_experts": EXPERTS, "num_experts_per_tok": CHOSEN, "moe_intermediate_size": HIDDEN}
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **more)).save_pretrained(folder)


def measure(folder: Path, size: int, mesh: str, *, weak: bool) -> Figures:
    """Return what `size` forked ranks measured."""
    return forked(folder, size, partial(passes, folder, mesh, weak=weak))[0]


def passes(folder: Path, mesh: str, place: Figures, *, weak: bool) -> Figures:
    """Return the time of a pass as one rank, and the bytes received in it, with the formulas'."""
    torch.set_num_threads(1)
    size = place["size"]
    trainer = TrainerConfig(
        mesh=mesh, num_ranks=size, max_tokens_per_microbatch=ROWS * LENGTH * size
    )
    with join_world(**place, unit=trainer.ranks_per_row, timeout_s=600) as world:
        policy = Policy.load(folder, world, trainer=trainer)
        parts = size // world.unit
        count = ROWS * (size if weak else 1) // parts  # rows of the ranks that share some
        packed = pack_rows(
            [half_sampled(np.random.default_rng(n), LENGTH, VOCAB) for n in range(count)]
        )
        policy.synchronize_gradients(True)
        seconds: list[float] = []
        for turn in range(TIMES + 1):
            world.barrier()
            received = Counter[str]()
            with Counting(received):
                began_s = time.perf_counter()
                policy.logprobs(packed).mean().backward()
            seconds.append(time.perf_counter() - began_s)
            policy.model.zero_grad()
            if not turn:
                seconds.clear()  # memory is new
        tokens = packed.tokens.shape[1]
        return {
            "tokens_of_rank": tokens // world.unit,
            "seconds": round(statistics.median(seconds), 3),
            "received": {part: received[part] for part in ("parameters", "exchanged")},
            "formula": formulas(policy, tokens, packed.positions),
        }


def formulas(policy: Policy, tokens: int, positions: Tensor) -> dict[str, int]:
    """Return the bytes that a rank receives in a pass over `tokens` with its gradient: of
    parameters and gradients, and of what ranks of a unit exchange; see docs/parallel.md."""
    world, shape = policy.world, Shape.read(policy._trainer.model_dump()["mesh"])
    context, tensor, experts = shape.context, shape.tensor, shape.experts
    parameters, seen = 0.0, set[int]()
    for module in policy.model.modules():
        for group in _groups(module):
            if id(group) in seen:
                continue
            seen.add(id(group))
            for it in group.fsdp_params:
                whole = it.sharded_param
                size = whole.device_mesh.size(-1)
                # The root is gathered once, others again for the gradient, which is then added up.
                times = 2 if module is policy.model else 3
                parameters += times * whole.numel() * 4 * (size - 1) / size
    mine, width, exchanged = tokens / world.unit, 4 * HIDDEN, 0.0
    if tensor > 1:
        # Attention and a dense feed-forward layer each gather and add up, in both directions, and
        # embeddings add up.
        parts = 1 if _has_experts(policy) else 2
        exchanged += (tensor - 1) * mine * width * (4 * parts * LAYERS + 2)
        most = max(_shares(positions, tokens, world, tensor))
        exchanged += (tensor - 1) * 2 * most * width  # the output layer gathers its tokens
    if context > 1:  # queries, keys, values and results change places, in both directions
        each = (context - 1) / context * tokens / context * width / tensor
        exchanged += 8 * LAYERS * each
    if experts > 1:  # tokens are gathered with their choices, and results added up
        exchanged += (experts - 1) * mine * LAYERS * (4 * width + CHOSEN * (8 + 2 * 4))
    if world.unit > 1:  # log-probs
        count = context if tensor > 1 else world.unit
        most = max(_shares(positions, tokens, world, 1, count))
        exchanged += (count - 1) * most * 2 * 4
    return {"parameters": round(parameters), "exchanged": round(exchanged)}


def _groups(module: Any) -> list[Any]:
    return module._get_fsdp_state()._fsdp_param_groups if isinstance(module, FSDPModule) else []


def _shares(
    positions: Tensor, tokens: int, world: World, tensor: int, count: int | None = None
) -> list[int]:
    """Return the numbers of predictions of each rank: of those that share this rank's tokens, or of
    `count` equal parts."""
    each = tokens // (count or world.unit)
    found = torch.bincount(positions // each, minlength=count or world.unit).tolist()
    first = world.rank % world.unit // tensor * tensor
    return found if count else found[first : first + tensor]


def _has_experts(policy: Policy) -> bool:
    return any(map(is_experts, policy.model.modules()))


class Counting:
    """A count of the bytes that a rank receives while the context is open: from FSDP2, and from
    model parallelism."""

    def __init__(self, received: Counter[str]) -> None:
        self._received = received
        self._places = [
            *((dist, name, "parameters") for name in _FSDP if hasattr(dist, name)),
            *((collectives, name, "exchanged") for name in ("_all_gather", "_reduce_scatter")),
            (dist, "all_to_all_single", "exchanged"),
        ]

    def __enter__(self) -> None:
        self._before = [(place, name, getattr(place, name)) for place, name, _ in self._places]
        for (place, name, function), (*_, kind) in zip(self._before, self._places, strict=True):
            setattr(place, name, self._counted(function, kind))

    def __exit__(self, *_: object) -> None:
        for place, name, function in self._before:
            setattr(place, name, function)

    def _counted(self, function: Any, kind: str) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            size = dist.get_world_size(kwargs.get("group"))
            tensors = [it for it in (*args, *kwargs.values()) if isinstance(it, Tensor)]
            self._received[kind] += max(it.nbytes for it in tensors) * (size - 1) // size
            return function(*args, **kwargs)

        return counted


_FSDP = (
    *("all_gather_single", "reduce_scatter_single"),
    *("all_gather_into_tensor", "reduce_scatter_tensor"),
)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(), indent=2) + "\n")
