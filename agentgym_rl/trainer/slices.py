"""A model of which each rank has slices from the first byte: whole, block by block, in trials, and
then sharded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from agentgym_rl.core import TrainerError
from agentgym_rl.weights import Loaded, Rounded, load_slices, replace, rows_of

from .world import World

_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""torch 2.13 renamed it."""


class Slices:
    """This rank's slices of the parameters of a model that is on the device "meta"."""

    def __init__(self, world: World, slices: dict[nn.Parameter, Tensor]) -> None:
        """Take over `slices`, which becomes empty when the model is sharded."""
        mesh = world.mesh
        self._device = world.device
        self._group = mesh.get_group(mesh.ndim - 1)
        self._rank, self._size = mesh.get_local_rank(mesh.ndim - 1), mesh.size(mesh.ndim - 1)
        self._slices = slices

    @classmethod
    def load(
        cls, folder: Path, world: World, *, dtype: torch.dtype, rounded: Rounded
    ) -> tuple[Self, Loaded]:
        """Load this rank's slices of the model in `folder`, some `rounded` (see `load_slices`).

        Raises:
            ConfigError: see `load_whole`; or tensors that transformers converts have other numbers
                afterwards.
        """
        rank, size = world.mesh.get_local_rank(world.mesh.ndim - 1), world.mesh.size(-1)
        loaded = load_slices(folder, dtype=dtype, rank=rank, size=size, rounded=rounded)
        slices = cls(world, loaded.slices)
        slices._check(loaded, world)
        return slices, loaded

    def _check(self, loaded: Loaded, world: World) -> None:
        """Check the numbers that were converted, a piece on each rank (collective)."""
        own = cast("dict[str, nn.Parameter]", loaded.model.state_dict(keep_vars=True))
        bad = list[str]()
        tensors = dict[str, nn.Parameter]()
        for number, piece in enumerate(loaded.converted):
            if tensors.keys() != set(piece.own):  # pieces of one tensor follow each other
                tensors.clear()
                whole = self._whole(own[name] for name in piece.own)
                tensors |= {name: whole.pop(own[name], own[name]) for name in piece.own}
            if number % world.size == world.rank:
                bad += loaded.names.changed(loaded.names.of_piece(piece, tensors))
        loaded.names.check(world.gather_all(bad))

    def _whole(
        self, parameters: Iterable[Tensor], *, wide: bool = False
    ) -> dict[nn.Parameter, nn.Parameter]:
        """Return the numbers of parameters that are slices, from all ranks (collective), in float32
        rather than in bfloat16 if `wide`."""
        found: dict[nn.Parameter, nn.Parameter] = {}
        for it in parameters:
            if not isinstance(it, nn.Parameter) or it not in self._slices:
                continue
            whole = part = self._slices[it].to(self._device)
            if self._size > 1:
                rows = -(-it.shape[0] // self._size)
                if len(part) < rows:
                    part = torch.cat([part, part.new_zeros(rows - len(part), *part.shape[1:])])
                whole = part.new_empty(rows * self._size, *part.shape[1:])
                _gather(whole, part, group=self._group)  # several at once would take their buffers
                whole = whole[: it.shape[0]]
            dtype = torch.float32 if wide and it.dtype == torch.bfloat16 else it.dtype
            found[it] = nn.Parameter(whole.to(dtype), requires_grad=it.requires_grad)
        return found

    @contextmanager
    def adopting(self, model: nn.Module) -> Iterator[None]:
        """Take over the numbers of the parameters that the context adds to `model`. All others are
        NaN there, on the CPU and without memory.

        Raises:
            TrainerError: a number that is added is not finite, or comes from those.
        """
        absent: dict[nn.Parameter, nn.Parameter] = {}
        for it in self._slices:
            numbers = torch.full((), torch.nan, dtype=it.dtype).expand(it.shape)
            absent[it] = nn.Parameter(numbers, requires_grad=it.requires_grad)
        replace(model, absent)
        yield
        back: dict[nn.Parameter, nn.Parameter] = {}
        for it, made in absent.items():
            back[made] = it
            it.requires_grad = made.requires_grad
        for name, added in model.named_parameters():
            if added in back:
                continue
            own = added.detach()
            if not bool(own.isfinite().all()):
                raise TrainerError(
                    f"the adapter's parameter {name} is not finite at the start; its numbers "
                    "cannot come from the model's weights, which are not there yet"
                )
            back[added] = it = nn.Parameter(own.to("meta"), requires_grad=added.requires_grad)
            self._slices[it] = own[rows_of(own.shape, self._rank, self._size)].clone()
        replace(model, back)

    def cut(
        self, parameter: nn.Parameter, take: Callable[[Tensor], Tensor], *, rank: int, size: int
    ) -> nn.Parameter:
        """Return what `take` takes of a parameter in its place; this rank is then the one of number
        `rank` among the `size` that share it (collective)."""
        grad = parameter.requires_grad
        if parameter not in self._slices:
            return nn.Parameter(take(parameter.detach()), requires_grad=grad)
        part = take(self._whole([parameter])[parameter].detach())
        made = nn.Parameter(part.to("meta", parameter.dtype), requires_grad=grad)
        kept = part[rows_of(part.shape, rank, size)].to("cpu", self._slices[parameter].dtype)
        self._slices[made] = kept.clone()
        del self._slices[parameter]
        return made

    @contextmanager
    def gathered(
        self, model: nn.Module, blocks: Sequence[nn.Module], *, wide: bool = False
    ) -> Iterator[None]:
        """Let `model` compute while the context is open, as if it were whole: each of the blocks
        is, while it computes, and all else is (collective). If `wide`, what is kept in bfloat16
        computes in float32."""
        blocks = blocks if self._slices else []
        units = {block: list(block.parameters()) for block in blocks}
        inside = {id(it) for parameters in units.values() for it in parameters}
        units[model] = [it for it in model.parameters() if id(it) not in inside]
        before: dict[nn.Module, dict[nn.Parameter, nn.Parameter]] = {}

        def enters(unit: nn.Module, inputs: Any = None) -> None:
            whole = self._whole(units[unit], wide=wide)
            replace(unit, whole)
            before[unit] = {made: empty for empty, made in whole.items()}

        def leaves(unit: nn.Module, inputs: Any = None, output: Any = None) -> None:
            replace(unit, whole := before.pop(unit, {}))
            for made in whole:  # the graph of a trial may hold it
                made.data = made.data.new_empty(0)

        handles = [block.register_forward_pre_hook(enters) for block in blocks]
        handles += [block.register_forward_hook(leaves, always_call=True) for block in blocks]
        enters(model)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            leaves(model)

    @contextmanager
    def sharding(self, model: nn.Module, device: torch.device) -> Iterator[None]:
        """Give the parameters, which FSDP2 may shard in the context, their numbers on `device`."""
        before = {name: p for name, p in model.named_parameters() if p in self._slices}
        yield
        placed: dict[nn.Parameter, nn.Parameter] = {}
        for name, sharded in model.named_parameters():
            if name not in before:
                continue
            part = self._slices.pop(before[name]).to(device, sharded.dtype)
            if isinstance(sharded, DTensor):
                # `from_local` would move it to the mesh's device, although it is to be offloaded.
                part = DTensor(part, sharded._spec, requires_grad=False)
            placed[sharded] = nn.Parameter(part, requires_grad=sharded.requires_grad)
        replace(model, placed)
        if placed:
            placed.clear()  # uneven parts are copied, one after the other
            model._apply(lambda tensor: tensor)  # FSDP takes note of what it has now
        self._slices.clear()
