"""The placement of a model's parameters and activations: FSDP2 over the ranks, block by block; and
off the device while engines have it (`cluster.colocated`), which never ran on GPUs."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
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


class Offload:
    """An offloader of models and their optimizers' state from `device`, and back.

    Tensors that are not on `device` stay where they are: all of them on a CPU, parameters that
    FSDP2 keeps there (`trainer.cpu_offload`), and optimizer state that is always there.
    """

    def __init__(
        self,
        models: Iterable[nn.Module],
        optimizers: Iterable[torch.optim.Optimizer],
        *,
        device: torch.device,
        aside: torch.device | None = None,
    ):
        self._models, self._optimizers = list(models), list(optimizers)
        self._device, self._aside = device, aside or torch.device("cpu")
        self._is_away = False
        self._moved: list[nn.Module] = []
        self._were_there: list[tuple[dict[Any, Any], Any]] = []
        """The states of the optimizers, with the keys whose tensors were on the device."""

    def away(self) -> None:
        """Move all off the device, and drop gradients, which are not needed between batches.
        Idempotent.

        A sharded model is resharded first, and its parameters stay the same objects.
        """
        if self._is_away or self._device.type == self._aside.type:
            return
        for model in self._models:
            for parameter in model.parameters():
                parameter.grad = None
            if any(it.device.type == self._device.type for it in model.parameters()):
                model.to(self._aside)
                self._moved.append(model)
        for optimizer in self._optimizers:
            for state in optimizer.state.values():
                for key, value in state.items():
                    if isinstance(value, Tensor) and value.device.type == self._device.type:
                        state[key] = value.to(self._aside)
                        self._were_there.append((state, key))
        self._is_away = True
        if self._device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()  # so that the engines' processes can use it

    def back(self) -> None:
        """Move everything back to the device. Idempotent."""
        if not self._is_away:
            return
        for model in self._moved:
            model.to(self._device)
        self._moved.clear()
        for state, key in self._were_there:
            state[key] = state[key].to(self._device)
        self._were_there.clear()
        self._is_away = False
