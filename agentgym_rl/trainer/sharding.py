"""Where a model's parameters are: split over the ranks with FSDP2, block by block."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from agentgym_rl.config import TrainerConfig

from .world import World


def shard(model: nn.Module, world: World, compute_dtype: str, trainer: TrainerConfig) -> None:
    """Shard `model` in place: each of its blocks by itself, and the rest together.

    With `compute_dtype` bfloat16 blocks are gathered in bfloat16 and the rest (embeddings, the
    last norm, the head) as it is kept; gradients are reduced in float32.
    """
    options: dict[str, Any] = {"mesh": world.mesh}
    if world.size == 1:
        options["reshard_after_forward"] = False  # nothing to save: the shard is the whole
    blocks = dict(options)
    if compute_dtype == "bfloat16":
        blocks["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
    for block in block_modules(model):
        fully_shard(block, **blocks)
    fully_shard(model, **options)
    assert isinstance(model, FSDPModule)


def block_modules(model: nn.Module) -> list[nn.Module]:
    """The layers that transformers says are not to be split."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]
