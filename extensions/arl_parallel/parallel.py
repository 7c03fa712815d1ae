"""A model whose tokens, matrices and experts are divided over ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from agentgym_rl.algo import PackedRows, is_experts
from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import TrainerError
from agentgym_rl.trainer import WHOLE, Compute, Cut, Divisible, Slices, World
from agentgym_rl.weights import add_otherwise

from .attention import NAME, PartPieces
from .checkpoint import described
from .collectives import complete, filled, gather_rows, gathered, sum_rows
from .experts import CutExperts, MostTokens
from .head import CutVocabulary
from .keys import MeshKeys
from .mesh import Meshes, meshes_of
from .plans import Heads, Ranges, check_family, nearest_divisor, ranges, rule, segments

# Linear layers return views without a bias. Nothing changes these in place.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")


class Parallel:
    """The division of one model; see `ModelParallel`."""

    def __init__(self, world: World, trainer: TrainerConfig) -> None:
        self._world, self._shape = world, trainer.part(MeshKeys).shape
        self._meshes = meshes_of(world, self._shape)
        self.cuts: dict[str, Cut] = {}
        self._owners: dict[nn.Module, DeviceMesh] = {}
        """The modules that have parts of parameters, with the ranks over which these are
        sharded."""
        self._groups: dict[str, ProcessGroup] = {}
        self._most = MostTokens(self._meshes.experts)
        self._predictions: _Predictions | None = None
        """The predictions of the present pass."""
        self._cuts_head = False

    # ------------------------------------------------------------------ the modules of the model
    def cut(self, model: Divisible, slices: Slices) -> None:
        """See `ModelParallel.cut`."""
        module, name = model.model, type(model.model).__name__
        config = module.config.get_text_config()
        if not model.is_segmented:
            raise TrainerError(
                f"c, t and e need attention over packed rows, which {name} does not compute "
                "correctly: use d alone"
            )
        self._inner, self._heads = module.config._attn_implementation, Heads.of(config)
        if (own := self._heads.queries // self._shape.tensor) % self._shape.context:
            odd = getattr(config, "attn_logit_softcapping", None) is not None
            if odd or any(it.endswith("sinks") for it, _ in module.named_parameters()):
                raise TrainerError(
                    f"c{self._shape.context} does not divide the {own} heads of attention of a "
                    f"rank, and those of {name} have sinks or a cap, which is not supported"
                )
        module.set_attn_implementation(NAME)
        maker = _Parts(module, slices, self)
        if self._shape.tensor > 1:
            check_family(config, self._shape.tensor)
            self._cut_matrices(module, config, maker)
            self._cut_vocabulary(model, maker)
        if self._shape.experts > 1:
            self._cut_experts(module, maker)

    def _cut_matrices(self, module: nn.Module, config: Any, parts: _Parts) -> None:
        count, group = self._shape.tensor, self._meshes.tensor
        at = _Place(group, self._meshes.matrices)
        gathering = set[str]()
        for name, layer in [*module.named_modules()]:
            if not (how := rule(name, self._heads, count)):
                continue
            gathering.add(name.rpartition(".")[0])
            for leaf, parameter in [*layer.named_parameters()]:
                its = f"{name}.{leaf}"
                if how == "rows" and ".lora_A." not in its:
                    lengths = segments(name, parameter.shape[0], config, count)
                    parts.cut(its, 0, ranges(lengths, count), at)
                elif how == "columns" and ".lora_B." not in its:
                    dim = parameter.ndim - 1
                    cut = ranges([parameter.shape[dim]], count)
                    parts.cut(its, dim, cut, at)
                    if not dim:
                        ((start, end),) = cut[group.rank()]
                        pads = start, len(parameter) - end
                        _pad_bias(module.get_submodule(its.rpartition(".")[0]), pads)
            if name.endswith(".qkv_proj"):
                _tell_heads(module.get_submodule(name.rpartition(".")[0]), self._heads, count)
            if how == "columns":
                layer.register_forward_hook(partial(_add_up, group))
        for name in gathering:
            module.get_submodule(name).register_forward_pre_hook(
                partial(_gather, group), with_kwargs=True
            )

    def _cut_vocabulary(self, model: Divisible, parts: _Parts) -> None:
        """Cut the embeddings, and the output layer if it has as many rows and computes log-probs.

        Raises:
            TrainerError: it does not, and is tied to the embeddings.
        """
        module, group = model.model, self._meshes.tensor
        words, head = module.get_input_embeddings(), module.get_output_embeddings()
        names = {part: name for name, part in module.named_modules()}
        cut = ranges([len(words.weight)], self._shape.tensor)
        ((start, end),) = cut[group.rank()]
        self._cuts_head = model.cuts_vocabulary
        if head.weight is words.weight and not self._cuts_head:
            raise TrainerError(
                f"t{self._shape.tensor}: the output layer of {type(module).__name__} is tied to "
                "its embeddings, and more than a product without a bias. Remedy: c in place of t"
            )
        for layer in (words, head) if self._cuts_head else (words,):
            parts.cut(f"{names[layer]}.weight", 0, cut, _Place(group, self._meshes.matrices))
        if words.padding_idx is not None:
            inside = start <= words.padding_idx < end
            words.padding_idx = words.padding_idx - start if inside else None
        _cut_embeddings(words, group, start, end)
        if self._cuts_head:
            model.cut_vocabulary(CutVocabulary(group, start, end))
            head.register_forward_pre_hook(self._gather_predictions)

    def _cut_experts(self, module: nn.Module, parts: _Parts) -> None:
        count, group = self._shape.experts, self._meshes.experts
        found = [(n, m) for n, m in module.named_modules() if is_experts(m)]
        if not found:
            raise TrainerError(f"e{count}: {type(module).__name__} has no experts")
        for name, experts in found:
            its: Any = experts
            leaves = [leaf for leaf, _ in experts.named_parameters()]
            total = len(experts.get_parameter(leaves[0]))
            if total % count:
                raise TrainerError(
                    f"e{count} does not divide the {total} experts of a layer; the nearest number "
                    f"that does is e{nearest_divisor(total, count)}"
                )
            for leaf in leaves:
                at = _Place(group, self._meshes.experts_part)
                parts.cut(f"{name}.{leaf}", 0, ranges([total], count), at)
            size = total // count
            its.num_experts = size
            its.forward = CutExperts(its, self._most, group, group.rank() * size, size)

    def keep(self, name: str, owner: nn.Module, cut: Cut, at: _Place) -> None:
        """Note a parameter that was cut."""
        self.cuts[name], self._owners[owner] = cut, at.mesh
        self._groups[name] = at.group

    def groups(self, module: nn.Module) -> list[tuple[list[nn.Module], DeviceMesh]]:
        """See `ModelParallel.groups`."""
        inside = {*module.modules()}
        found: dict[DeviceMesh, list[nn.Module]] = {}
        for owner in [it for it in self._owners if it in inside]:
            found.setdefault(self._owners.pop(owner), []).append(owner)
        return [(its, mesh) for mesh, its in found.items()]

    # ------------------------------------------------------------------ a pass
    def outputs(self, packed: PackedRows, compute: Compute) -> Tensor:
        """See `ModelParallel.outputs`."""
        meshes, shape = self._meshes, self._shape
        packed = _padded(packed, shape.unit)
        total = packed.tokens.shape[1]
        each, own = total // shape.context, total // shape.unit
        if shape.experts > 1:
            self._most.share(own, packed.tokens.device)
        group = meshes.context if self._cuts_head else meshes.unit
        its = _Predictions.of(packed.positions, own, meshes, cuts_head=self._cuts_head)
        self._predictions = its
        first = meshes.context.rank() * each
        part = slice(first, first + each)
        pieces = PartPieces(
            *(packed.lengths, packed.branches, packed.tokens.device),
            inner=self._inner,
            heads=self._heads,
            context=meshes.context,
            tensor=meshes.tensor,
        )
        experts = packed.experts
        if experts is not None:
            experts = experts[meshes.unit.rank() * own :][:own]
        local = replace(
            packed,
            tokens=packed.tokens[:, part],
            position_ids=packed.position_ids[:, part],
            positions=its.positions,
            targets=packed.targets[its.rows],
            temperatures=packed.temperatures[its.rows],
            allowed=packed.allowed and replace(packed.allowed, sets=packed.allowed.sets[its.rows]),
            experts=experts,
        )
        found = complete(compute(local, its.rows, pieces), its.sizes, group)
        return found[its.order]

    def _gather_predictions(self, head: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        """Return the hidden states [1, P, H] at the predictions of all ranks that share tokens."""
        its = self._predictions
        assert its is not None
        (hidden,) = inputs
        most, group = max(its.shares), self._meshes.tensor
        parts = gather_rows(filled(hidden[0], most), group).split(most)
        return torch.cat([x[:n] for x, n in zip(parts, its.shares, strict=True)])[None]

    def total(self, numbers: Tensor) -> Tensor:
        """See `ModelParallel.total`."""
        numbers = numbers.to(self._world.device)
        dist.all_reduce(numbers, group=self._meshes.unit)
        return numbers.cpu()

    def mark(self, model: nn.Module) -> None:
        """See `ModelParallel.mark`."""
        for name, parameter in model.named_parameters():
            if name in self.cuts:
                cut = self.cuts[name]
                setattr(parameter, WHOLE, _Whole(cut, self._groups[name]))

    def checkpointed(self, state: dict[str, Any]) -> dict[str, Any]:
        """See `ModelParallel.checkpointed`."""
        return described(state, self.cuts, self._world)


class _Place(NamedTuple):
    """The ranks that divide a parameter, and those that shard this rank's part."""

    group: ProcessGroup
    mesh: DeviceMesh


class _Whole(NamedTuple):
    """The complete parameter of a part; see `Whole`."""

    cut: Cut
    group: ProcessGroup

    def joined(self, part: Tensor) -> Tensor:
        cut, count = self.cut, self.group.size()
        most = max(cut.local(r, count)[cut.dim] for r in range(count))
        parts = gathered(filled(part.movedim(cut.dim, 0), most), self.group).split(most)
        whole = part.new_empty(cut.shape)
        for rank, its in enumerate(parts):
            at = 0
            for a, b in cut.parts[rank]:
                whole.narrow(cut.dim, a, b - a).copy_(its[at : at + b - a].movedim(0, cut.dim))
                at += b - a
        return whole

    def taken(self, whole: Tensor) -> Tensor:
        return self.cut.taken(whole, self.group.rank())


class _Parts:
    """A maker of parts of parameters; a parameter that two modules share is cut once."""

    def __init__(self, module: nn.Module, slices: Slices, parallel: Parallel) -> None:
        self._module, self._slices, self._parallel = module, slices, parallel
        self._made: dict[nn.Parameter, nn.Parameter] = {}

    def cut(self, name: str, dim: int, cuts: Sequence[Ranges], at: _Place) -> None:
        """Replace a parameter by this rank's part."""
        owner = self._module.get_submodule(name.rpartition(".")[0])
        leaf = name.rpartition(".")[2]
        parameter: Any = owner._parameters[leaf]
        cut = Cut(parameter.shape, dim, cuts)
        if parameter not in self._made:
            if any(sum(b - a for a, b in its) == 0 for its in cuts):
                raise TrainerError(
                    f"{name}, {tuple(cut.shape)}, is too small to be cut in {len(cuts)}"
                )
            self._made[parameter] = self._slices.cut(
                parameter,
                partial(cut.taken, part=at.group.rank()),
                rank=at.mesh.get_local_rank(at.mesh.ndim - 1),
                size=at.mesh.size(at.mesh.ndim - 1),
            )
        owner._parameters[leaf] = self._made[parameter]
        self._parallel.keep(name, owner, cut, at)


class _Predictions(NamedTuple):
    """The predictions whose outputs a rank computes in a pass."""

    rows: Tensor
    """Their places among all, [P of the rank]; at least one."""
    positions: Tensor
    """The places of their hidden states among the tokens of this rank."""
    shares: Sequence[int]
    """The number of them on each rank that shares tokens with this one."""
    sizes: Sequence[int]
    """The number of predictions that each rank of the group computes."""
    order: Tensor
    """The place of each prediction in the sequence of those of all ranks."""

    @classmethod
    def of(cls, positions: Tensor, own: int, meshes: Meshes, *, cuts_head: bool) -> _Predictions:
        """Return the predictions at `positions` of a rank with `own` tokens."""
        owners = positions // own
        each = [(owners == r).nonzero()[:, 0] for r in range(meshes.shape.unit)]
        rank, count = meshes.unit.rank(), meshes.shape.tensor
        first = rank // count * count
        counts = [len(its) for its in each]
        sizes = counts
        its = [rank]
        if cuts_head:
            sizes = [sum(counts[i : i + count]) for i in range(0, len(counts), count)]
            its = [*range(first, first + count)]
        rows = torch.cat([each[r] for r in its])
        at = positions[each[rank]] - rank * own
        shares = [counts[r] for r in its]
        if not len(rows):  # one that does not count: the gradients of the output layer are zero
            rows = rows.new_zeros(1)
            shares[0] = 1
            at = at.new_zeros(1)
        return cls(rows, at, shares, sizes, torch.cat(each).argsort())


def _padded(packed: PackedRows, unit: int) -> PackedRows:
    """Return the rows, followed by one of tokens that nothing reads, so that ranks have as many."""
    pad = -packed.tokens.shape[1] % unit
    if not pad:
        return packed
    depths = torch.arange(pad, device=packed.position_ids.device)[None]
    branches, experts = packed.branches, packed.experts
    return replace(
        packed,
        tokens=nn.functional.pad(packed.tokens, (0, pad)),
        position_ids=torch.cat([packed.position_ids, depths], 1),
        lengths=(*packed.lengths, pad),
        branches=branches and replace(branches, shared=(*branches.shared, 0)),
        experts=None
        if experts is None
        else nn.functional.pad(experts, (0, 0, 0, 0, 0, pad), value=-1),
    )


# ------------------------------------------------------------------ hooks
def _gather(
    group: ProcessGroup, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Gather the tokens [1, n, H] of all ranks before a part of a block."""
    if args:
        return (gather_rows(args[0], group, batched=True), *args[1:]), kwargs
    hidden = gather_rows(kwargs["hidden_states"], group, batched=True)
    return args, {**kwargs, "hidden_states": hidden}


def _add_up(group: ProcessGroup, layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """Return the sum over ranks of a layer's output, for this rank's tokens."""
    return sum_rows(output, group, batched=True)


def _tell_heads(attention: Any, heads: Heads, count: int) -> None:
    """Let an attention that splits a joined matrix split one of `count` parts."""
    attention.config = its = copy(attention.config)
    its.num_attention_heads = heads.queries // count
    attention.num_key_value_heads = heads.keys // count


def _cut_embeddings(words: Any, group: ProcessGroup, start: int, end: int) -> None:
    """Let an embedding layer that has the tokens `start` to `end` look up those, and add up over
    ranks."""
    compute: Callable[[Tensor], Tensor] = words.forward

    def forward(ids: Tensor) -> Tensor:
        local = ids - start
        outside = (local < 0) | (local >= end - start)
        found = compute(local.clamp(0, end - start - 1)).masked_fill(outside[..., None], 0.0)
        return sum_rows(found, group, batched=True)

    words.forward = forward


def _pad_bias(layer: Any, pads: tuple[int, int]) -> None:
    """Let a layer whose outputs are added up over ranks add this rank's numbers of its bias."""
    add_otherwise(layer, lambda: nn.functional.pad(layer.bias, pads))
