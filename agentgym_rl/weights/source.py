"""The tensors of a model under the names that its folder has, and the parts of a model by their
kinds.

transformers may rename and merge tensors when it loads them (experts of a layer become one tensor).
The readers of a version or an export, such as servers, expect the folder's tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional as F
from transformers.core_model_loading import revert_weight_conversion

from agentgym_rl.core import ConfigError, WeightsError, tensor_heads

from .files import Kind, LazyTensors, block_of, kinds_of
from .parts import PART_BYTES

_SHORT, _LONG = ("F16", "BF16"), ("F64", "F32")
LOAD_ERRORS = (OSError, ValueError, RuntimeError, ImportError, KeyError, TypeError, AttributeError)


_ADDED = "arl_added"


def multiply_in(model: Any, dtype: torch.dtype) -> None:
    """Make the linear layers of `model`, except its head, compute in `dtype`.

    Everything else keeps the model's own dtype: embeddings, norms, attention, head, and the
    residual stream. On a CPU, this is the meaning of `engine.dtype` bfloat16: the matrix products
    take most of the time, and the rest would lose precision. Weights are rounded at each use, so
    they may be changed.
    """
    for part in inner_linears(model):
        part.forward = partial(_multiplied, part, dtype)


def inner_linears(model: Any) -> list[torch.nn.Linear]:
    """Return the linear layers of a causal language model, except its head."""
    head = model.get_output_embeddings()
    return [part for part in model.modules() if is_linear(part) and part is not head]


def is_linear(part: torch.nn.Module) -> TypeGuard[torch.nn.Linear]:
    """Return whether a module is only a linear layer: some routers are a subclass, and choose
    experts, too."""
    return isinstance(part, torch.nn.Linear) and type(part).forward is torch.nn.Linear.forward


def _multiplied(part: torch.nn.Linear, dtype: torch.dtype, input: Tensor) -> Tensor:
    bias = bias_of(part)
    bias = None if bias is None else bias.to(dtype)
    return F.linear(input.to(dtype), part.weight.to(dtype), bias).to(input.dtype)


def bias_of(part: torch.nn.Linear) -> Tensor | None:
    """Return what a linear layer adds: its bias, unless `add_otherwise` said so."""
    found: Callable[[], Tensor] | None = getattr(part, _ADDED, None)
    return part.bias if found is None else found()


def add_otherwise(part: torch.nn.Linear, bias: Callable[[], Tensor]) -> None:
    """Let a linear layer add what `bias` returns, in place of its bias."""
    setattr(part, _ADDED, bias)

    def forward(input: Tensor) -> Tensor:
        return F.linear(input, part.weight, bias())

    part.forward = forward


def factor(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a factor for `wide_product`, rounded to `dtype`: on a CPU, whose products in half
    precision are rounded again, as float32 numbers."""
    rounded = x.to(dtype)
    return rounded if rounded.is_cuda else rounded.to(torch.promote_types(dtype, torch.float32))


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product of factors, summed and returned in float32 or better."""
    half = a.dtype in (torch.bfloat16, torch.float16)
    return torch.mm(a, b, out_dtype=torch.float32) if half else a @ b


def wide_linear(weight: Tensor, x: Tensor) -> Tensor:
    """Return x W^T, [.., out] for x [.., in], by `wide_product`."""
    low, matrix = (factor(it, weight.dtype) for it in (x.flatten(0, -2), weight))
    return wide_product(low, matrix.T).unflatten(0, x.shape[:-1])


def set_own_attention(model: Any) -> str:
    """Set the attention that `model` uses for rows that are not packed, and return its name:
    "sdpa", or "eager" if SDPA does not implement the model's configuration."""
    # Before 5.24, transformers' SDPA accepts Gemma 2 and ignores its soft-capping of scores.
    if not getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        try:
            model.set_attn_implementation("sdpa")
            return "sdpa"
        except ValueError:  # SDPA cannot compute this model's attention
            pass
    model.set_attn_implementation("eager")
    return "eager"


class Piece(NamedTuple):
    """The tensors of a model's folder that are converted together."""

    own: tuple[str, ...]
    """The model's names of the tensors from which they are made."""
    kinds: Mapping[str, Kind]
    """Their names in the folder, with the dtypes and shapes that they have in the trainer."""
    rows: tuple[int, int] | None = None
    """The first row, and the end, of the only tensor of `own` that they are made from; None: all
    rows. They are then the tensors of some experts of a layer."""


class SourceNames:
    """The names of a model's tensors in the folder from which it was loaded, and the conversion in
    both directions."""

    def __init__(self, model: Any, folder: Path):
        """Compare an outline of the model with its folder; see `check`.

        Raises:
            ConfigError: the names or shapes of tensors would differ from the folder's if the model
                were saved.
        """
        heads = tensor_heads(folder)
        self.shapes = {name: head.shape for name, head in heads.items()}
        """The shape of every tensor of the folder, by its name there."""
        is_short = any(head.dtype in _SHORT for head in heads.values())
        self.precise = {name for name, it in heads.items() if is_short and it.dtype in _LONG}
        """The tensors that are float32 in the folder although others have 16 bits: the model needs
        their precision."""
        self._folder = folder
        self._model = model
        self._kind = type(model)  # FSDP will change the type of the model
        own = model.state_dict(keep_vars=True)
        self._own = frozenset(own)
        first: dict[int, str] = {}
        self.tied = {
            name: known
            for name, tensor in own.items()
            if (known := first.setdefault(id(tensor), name)) != name
        }
        """The names of tensors that are others, each with the first name of the same tensor."""
        needed = {name for name, _ in model.named_parameters()}
        self.converts = bool(getattr(model, "_weight_conversions", None)) or not (
            needed <= self.shapes.keys()
        )
        """Whether the names in the folder differ from the model's."""
        self.ignored: dict[str, Tensor] = {}
        """The tensors of the folder that the model does not use, for example layers of other
        decoders."""
        try:
            made = self._made({name: own[name].detach() for name in own.keys() - self.tied.keys()})
            may_lack = {name: own[name].detach() for name in own.keys() - needed}
            surplus = made.keys() - self.shapes.keys() - self._made(may_lack).keys()
            self.ignored = _read(folder, self.shapes.keys() - made.keys())
            bad = _differing(self.shapes, {**self.ignored, **made}, surplus)
        except LOAD_ERRORS as error:
            bad = [f"{type(error).__name__}: {error}"]
        self._refuse(bad)

    def check(self, changed: Iterable[Iterable[str]]) -> None:
        """Check that the numbers of no tensors of the folder have `changed`.

        Raises:
            ConfigError: some have.
        """
        self._refuse([f"{name} has other numbers" for names in changed for name in names])

    def _refuse(self, bad: Sequence[str]) -> None:
        if bad:
            raise ConfigError(
                f"transformers converts the tensors of {self._folder} when it loads them as "
                f"{self._kind.__name__}, and would not give them back as they were: {some(bad)}. "
                "Save the model once with this transformers (save_pretrained with "
                "save_original_format=False) and use that folder"
            )

    def pieces(self, own: Mapping[str, Tensor]) -> list[Piece]:
        """Divide the tensors of the folder into pieces that can be converted one after the other;
        `own` are the model's tensors by its own names, tied ones once, on the device "meta".

        Raises:
            WeightsError: they do not result in the folder's names and shapes.
        """
        ignored = [Piece((), {name: kind}) for name, kind in kinds_of(self.ignored).items()]
        alone = [(name,) for name in own]
        bad: list[str] = []
        # From small to large: some tensors of a folder are made from several of the model's.
        for groups in (alone, _blocks(own), [tuple(own)]):
            try:
                pieces = [it for group in groups for it in self._pieces(group, own)]
            except LOAD_ERRORS as error:
                bad = [f"{type(error).__name__}: {error}"]
                continue
            found = {name: kind for piece in pieces for name, kind in piece.kinds.items()}
            bad = _differing(self.shapes, {**kinds_of(self.ignored), **found})
            if not bad and sum(len(piece.kinds) for piece in pieces) == len(found):
                return [piece for piece in pieces if piece.kinds] + ignored
        raise WeightsError(
            f"the weights do not have the names and shapes of {self._folder}: {some(bad)}"
        )

    def _pieces(self, group: tuple[str, ...], own: Mapping[str, Tensor]) -> list[Piece]:
        """Return the piece of a group of tensors, or several pieces if it is one large tensor whose
        rows are tensors of the folder, as experts are: then no rank needs it whole."""
        whole = Piece(group, kinds_of(self.of({name: own[name] for name in group})))
        name, *others = group
        if others or (tensor := own[name]).nbytes <= PART_BYTES:
            return [whole]
        count = max(1, PART_BYTES // tensor[0].nbytes)
        pieces: list[Piece] = []
        made: dict[int, dict[str, Kind]] = {}  # by the number of rows, for the first of them
        for first in range(0, len(tensor), count):
            size = min(count, len(tensor) - first)
            try:
                made[size] = made.get(size) or kinds_of(self.of({name: tensor[:size]}))
            except LOAD_ERRORS:
                return [whole]
            kinds = {_numbered(its, first): kind for its, kind in made[size].items()}
            if not kinds.items() <= whole.kinds.items():
                return [whole]
            pieces.append(Piece(group, kinds, (first, first + size)))
        found = sorted(its for piece in pieces for its in piece.kinds)
        return pieces if found == sorted(whole.kinds) else [whole]

    def of(self, state: Mapping[str, Tensor], first: int = 0) -> dict[str, Tensor]:
        """Return the tensors of the folder, by their names there, that are made from `state`: the
        tensors of a `Piece` by the model's own names, or their rows from `first` on."""
        made = {_numbered(name, first): tensor for name, tensor in self._made(state).items()}
        return {name: tensor for name, tensor in made.items() if name in self.shapes}

    def of_piece(self, piece: Piece, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a piece, of the model's complete tensors `own`."""
        if piece.rows is None:
            return self.of({name: own[name] for name in piece.own})
        return self.of({name: own[name][slice(*piece.rows)] for name in piece.own}, piece.rows[0])

    def unchanged(self, own: Mapping[str, Tensor]) -> dict[str, str]:
        """Return the name in the folder of each of the model's tensors `own`, by its own name, that
        is the same tensor there, not one of which transformers makes others."""
        found: dict[str, str] = {}
        for name, tensor in own.items():
            try:
                made = self.of({name: tensor})
            except LOAD_ERRORS:  # it is converted together with others
                continue
            found.update((name, its) for its, it in made.items() if it is tensor)
        return found

    def back(self, tensors: Mapping[str, Tensor], *, source: str) -> Mapping[str, Tensor]:
        """Undo `of`: return the model's tensors by its own names; versions of earlier runs have
        these names already. `source` describes the origin of the tensors in errors.

        Raises:
            WeightsError: a tensor is missing, unknown or of another shape.
        """
        names = [name for name in tensors if name not in self.ignored]
        kept = LazyTensors(names, tensors.__getitem__)
        if not self.converts or kept.keys() <= self._own:
            return kept
        whole = dict(kept)
        if bad := _differing(self.shapes, {**self.ignored, **whole}):
            raise WeightsError(f"{source} is not of the model in {self._folder}: {some(bad)}")
        # The dtype is float32, whatever the engine's is: another one would temporarily become
        # torch's default, also for the decoding thread.
        model = self._kind.from_pretrained(
            None, config=self._model.config, state_dict=whole, dtype=torch.float32
        )
        return {name: t for name, t in model.state_dict().items() if name not in self.tied}

    def _made(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return `state` as it would be saved, tied tensors under each of their names."""
        whole = {**state, **{name: state[n] for name, n in self.tied.items() if n in state}}
        if not self.converts:
            return whole
        reverted = revert_weight_conversion(self._model, whole)
        return {self._named(name): tensor.contiguous() for name, tensor in reverted.items()}

    def _named(self, name: str) -> str:
        """Return `name`, or its name in a folder saved with one prefix less or more."""
        prefix = f"{self._model.base_model_prefix}."
        choices = (name, name.removeprefix(prefix), prefix + name)
        return next((choice for choice in choices if choice in self.shapes), name)

    def changed(self, made: Mapping[str, Tensor]) -> list[str]:
        """Return the names of the folder's tensors whose values differ in `made`."""
        tensors = {n: t for n, t in made.items() if n in self.shapes and t.device.type != "meta"}
        return [
            name
            for file_tensors in _by_file(self._folder, tensors.keys())
            for name, tensor in file_tensors
            if not torch.equal(tensor.to(tensors[name].dtype), tensors[name].cpu())
        ]


def _numbered(name: str, more: int) -> str:
    """Return the name of an expert's tensor with `more` added to the last number: transformers
    counts from 0 the experts that it is given."""
    found = re.fullmatch(r"(.*\.)(\d+)(\..*)", name) if more else None
    return f"{found[1]}{int(found[2]) + more}{found[3]}" if found else name


def _blocks(own: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the names grouped by block of the model; a name outside of blocks is a group by
    itself."""
    blocks: dict[str, list[str]] = {}
    for name in own:
        blocks.setdefault(block_of(name) or name, []).append(name)
    return list(map(tuple, blocks.values()))


def _differing(
    expected: Mapping[str, tuple[int, ...]],
    found: Mapping[str, Tensor | Kind],
    surplus: Iterable[str] = (),
) -> list[str]:
    """Return descriptions of the tensors that `found` lacks, has in excess, or has with another
    shape."""
    bad = [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
    bad += [f"{name} is too much" for name in sorted(surplus)]
    return bad + [
        f"{name} has shape {tuple(found[name].shape)}, not {expected[name]}"
        for name in sorted(expected.keys() & found.keys())
        if tuple(found[name].shape) != expected[name]
    ]


def _read(folder: Path, names: Iterable[str]) -> dict[str, Tensor]:
    return {name: tensor for found in _by_file(folder, names) for name, tensor in found}


def _by_file(folder: Path, names: Iterable[str]) -> Iterator[Iterator[tuple[str, Tensor]]]:
    """Yield the tensors of a folder, mapped into memory, one file after the other."""
    heads = tensor_heads(folder)
    wanted = sorted(names, key=lambda name: (heads[name].file, name))
    for file, members in groupby(wanted, key=lambda name: heads[name].file):
        with safe_open(file, framework="pt") as opened:
            yield ((name, opened.get_tensor(name)) for name in members)


def some(bad: Sequence[str]) -> str:
    """Return the first of some descriptions, and the number of the others."""
    more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    return "; ".join(bad[:3]) + more
