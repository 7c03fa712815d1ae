"""The placement of a model's parameters and activations: FSDP2 over the ranks, block by block."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from agentgym_rl.config import TrainerConfig

from .attention import SEGMENT_SDPA, segment_attention
from .world import World


def shard(model: nn.Module, world: World, compute_dtype: str, trainer: TrainerConfig) -> None:
    """Shard `model` in place: each of its blocks separately, and the rest together.

    With `compute_dtype` bfloat16, blocks are gathered in bfloat16 and the rest (embeddings, the
    last norm, the head) in its own dtype; gradients are reduced in float32. Frozen parameters of
    blocks are then also stored in bfloat16, which halves their memory.
    """
    options: dict[str, Any] = {"mesh": world.mesh}
    if world.size == 1:
        options["reshard_after_forward"] = False  # nothing to save: the only shard is complete
    if trainer.cpu_offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=world.device.type == "cuda")
    blocks = dict(options)
    if compute_dtype == "bfloat16":
        blocks["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
    if trainer.compile:  # its loop over rows would be recompiled for every number of rows
        AttentionInterface.register(SEGMENT_SDPA, torch.compiler.disable(segment_attention))
    for block in _blocks(model):
        _change_forward(block, trainer)
        if compute_dtype == "bfloat16":
            _round_frozen(block)
        fully_shard(block, **blocks)
    fully_shard(model, **options)
    assert isinstance(model, FSDPModule)


def _round_frozen(block: nn.Module) -> None:
    for parameter in block.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.bfloat16()


def _change_forward(block: nn.Module, trainer: TrainerConfig) -> None:
    """Wrap the forward inside FSDP's hooks, so that recomputation gathers parameters too."""
    if trainer.compile:
        block.forward = torch.compile(block.forward, dynamic=True)
    if trainer.activation_checkpointing:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return the layers that transformers declares unsplittable."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]
