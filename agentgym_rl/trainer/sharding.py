"""The placement of a model's parameters and activations: FSDP2 over the ranks, block by block; and
their removal from the device while engines use it, which has never run on GPUs."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from transformers import AttentionInterface

from agentgym_rl.config import TrainerConfig
from agentgym_rl.weights import is_linear, multiply_in

from .attention import SEGMENT_SDPA, gpu_attentions
from .model_parallel import Cut, ModelParallel
from .slices import Slices
from .world import World

_aten = torch.ops.aten
DEAR = (
    *(_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default),
    _aten._grouped_mm.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
)
"""The expensive operations, whose results a `light` block keeps. Norms, rotations and products of
single elements are half of a block's activations and a tenth of its time."""


def shard(
    model: nn.Module,
    world: World,
    compute_dtype: str,
    trainer: TrainerConfig,
    *,
    light: bool = False,
    slices: Slices | None = None,
    parallel: ModelParallel | None = None,
) -> None:
    """Shard `model` in place: each of its blocks separately, and the rest together. This rank has
    `slices` of the parameters that are on the device "meta".

    What `parallel` has cut is sharded over the ranks that have the same part. Gradients are added
    up, not averaged, since groups have different numbers of ranks.

    `light` blocks keep only the results of `DEAR` operations for the gradient, which is the same to
    the last bit, and compute the others again.

    With `compute_dtype` bfloat16, blocks are gathered in bfloat16 and the rest (embeddings, the
    last norm, the head) in its own dtype; gradients are reduced in float32. On a CPU, only linear
    layers compute in bfloat16, as the engine's do: nothing else is faster in it. Frozen parameters
    that compute in bfloat16 are also stored in it, which halves their memory. Parameters kept in
    bfloat16 that compute in float32 are gathered in it. A single rank that neither gathers in
    another dtype nor offloads has nothing to shard: FSDP would only hold all parameters twice and
    copy every gradient twice.
    """
    options: dict[str, Any] = {"mesh": world.mesh}
    rounded, on_cpu = compute_dtype == "bfloat16", world.device.type == "cpu"
    if not rounded and any(p.dtype == torch.bfloat16 for p in model.parameters()):
        wide = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32)
        options["mp_policy"] = wide  # blocks are not kept in float32, even by a single rank
    elif world.size == 1:
        options["reshard_after_forward"] = False  # nothing to save: the only shard is complete
    if trainer.cpu_offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=world.device.type == "cuda")
    blocks = dict(options)
    if rounded and on_cpu:
        multiply_in(model, torch.bfloat16)
    elif rounded:
        blocks["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
    if trainer.compile:  # its loop over rows would be recompiled for every number of rows
        added = ((it.bfloat16, it.float32) for it in gpu_attentions(trainer.attention))
        for name in (SEGMENT_SDPA, *chain.from_iterable(added)):
            compute = AttentionInterface()[name]
            AttentionInterface.register(name, torch.compiler.disable(compute))
    whole = world.size == 1 and "mp_policy" not in blocks and not trainer.cpu_offload
    place = torch.device("cpu") if trainer.cpu_offload else world.device
    with slices.sharding(model, place) if slices else nullcontext():
        for parameter in in_bfloat16(model, world.device) if rounded else ():
            if not parameter.requires_grad:
                parameter.data = parameter.data.bfloat16()
        for block in blocks_of(model):
            _change_forward(block, trainer, light=light)
            if not whole:
                for parts, mesh in parallel.groups(block) if parallel else ():
                    fully_shard(parts, **{**blocks, "mesh": mesh})
                fully_shard(block, **blocks)
        if not whole:
            for parts, mesh in parallel.groups(model) if parallel else ():
                fully_shard(parts, **{**options, "mesh": mesh})
            fully_shard(model, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)


def in_bfloat16(model: nn.Module, device: torch.device) -> list[nn.Parameter]:
    """Return the parameters that compute in bfloat16 with the `compute_dtype` of that name: those
    of blocks, on a CPU only those of their linear layers."""
    parts = (part for block in blocks_of(model) for part in block.modules())
    computing = (part for part in parts if device.type != "cpu" or is_linear(part))
    return [it for part in computing for it in part.parameters(recurse=False)]


def _change_forward(block: nn.Module, trainer: TrainerConfig, *, light: bool) -> None:
    """Wrap the forward inside FSDP's hooks, so that recomputation gathers parameters too."""
    if trainer.compile:
        block.forward = torch.compile(block.forward, dynamic=True)
    if trainer.activation_checkpointing:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    elif light:
        block.forward = partial(
            checkpoint,
            block.forward,
            use_reentrant=False,
            preserve_rng_state=False,  # a model that is evaluated draws no random number
            context_fn=_keeping_dear,
        )


def _keeping_dear() -> tuple[_Dear, _Dear]:
    """Return the contexts of a light block's forward and of its repetition."""
    first, again = create_selective_checkpoint_contexts(list(DEAR))
    return _Dear(first), _Dear(again)


class _Dear(TorchDispatchMode):
    """A mode of torch's that sees the `DEAR` operations alone: it counts all that it sees, and
    FSDP2 gathers parts of a block otherwise when that is repeated."""

    def __init__(self, mode: Any) -> None:
        super().__init__()
        self._mode = mode

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in DEAR:
            return func(*args, **(kwargs or {}))
        return self._mode.__torch_dispatch__(func, types, args, kwargs)


class KeptByLight(TorchDispatchMode):
    """A count of the bytes that light blocks keep for the gradient of the passes in its context."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.total = 0
        self._blocks = blocks_of(model)
        self._handles: list[Any] = []

    def __enter__(self) -> KeptByLight:
        def enters(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._add([*args, *kwargs.values()][:1])

        self._handles = [
            block.register_forward_pre_hook(enters, with_kwargs=True) for block in self._blocks
        ]
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        for handle in self._handles:
            handle.remove()
        super().__exit__(*args)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in DEAR:
            self._add(result if isinstance(result, tuple | list) else [result])
        return result

    def _add(self, tensors: Iterable[Any]) -> None:
        self.total += sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))


class Gathering:
    """Parameters on their way to one rank each, on which all ranks agree (collective).

    Shards are sent only to that rank, each directly to its place. Sending ranks do not wait, so
    that they do not keep step with each parameter; they `finish` before a parameter changes.
    """

    def __init__(self, world: World) -> None:
        self._world, self._rank = world, world.rank
        self._sent: list[tuple[dist.Work, list[Tensor]]] = []

    def gather(
        self,
        owner: int,
        parameter: Tensor,
        cut: Cut | None = None,
        rows: tuple[int, int] | None = None,
    ) -> Tensor:
        """Return a parameter, unsharded, or the rows of it from a first to an end, on the rank
        `owner`, and an empty tensor on other ranks.

        A parameter that is not sharded, as with a single rank, is not copied.
        """
        shards, empty = parameter.detach(), torch.empty(0)
        if not isinstance(shards, DTensor):
            return empty if self._rank != owner else shards[slice(*rows)] if rows else shards
        *outer, last = shards.placements
        assert last.is_shard(0), last
        assert all(it.is_replicate() for it in outer), outer
        size = self._world.mesh.size(-1)  # the ranks of a copy of the model
        first = owner // size * size
        cut = cut or Cut(shards.shape, 0, [[(0, shards.shape[0])]])
        own = shards.to_local()
        if not first <= self._rank < first + size:  # another copy's
            return empty
        if self._rank != owner:
            parts = [own[here] for _, here in cut.shard(self._rank - first, size, rows)]
            parts = [part.contiguous() for part in parts if part.numel()]
            sending = [dist.P2POp(dist.isend, part, owner) for part in parts]
            sent = dist.batch_isend_irecv(sending) if sending else ()
            self._sent += [(work, parts) for work in sent]
            return empty
        count = rows[1] - rows[0] if rows else cut.shape[0]
        whole = own.new_empty((count, *cut.shape[1:]))
        coming: list[dist.P2POp] = []
        copies: list[tuple[Tensor, Tensor]] = []
        for rank in range(first, first + size):
            for there, here in cut.shard(rank - first, size, rows):
                target = whole[there]
                if rank == owner:
                    copies.append((target, own[here]))
                elif target.numel():
                    part = target if target.is_contiguous() else own.new_empty(target.shape)
                    coming.append(dist.P2POp(dist.irecv, part, rank))
                    if part is not target:
                        copies.append((target, part))
        for work in dist.batch_isend_irecv(coming) if coming else ():
            work.wait()
        for target, part in copies:
            target.copy_(part)
        return whole

    def finish(self) -> None:
        """Wait until all that was sent has arrived."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, without its gradient."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers that transformers declares unsplittable, except those inside another and
    those that share parameters with other parts (Zamba, BERT): they are gathered with these."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    blocks: list[nn.Module] = []
    inside: set[int] = set()
    for module in model.modules():  # from the outside to the inside
        if type(module).__name__ in names and id(module) not in inside:
            blocks.append(module)
            inside |= {id(it) for it in module.modules()}
    owners = Counter(id(it) for block in blocks for it in block.parameters())
    rest = (module for module in model.modules() if id(module) not in inside)
    owners.update({id(it) for module in rest for it in module.parameters(recurse=False)})
    return [block for block in blocks if all(owners[id(it)] == 1 for it in block.parameters())]


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
