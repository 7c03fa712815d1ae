"""The loading of a model from its folder, completely or not at all: whole, without its numbers, or
one rank's slices of it, while no more than a single tensor of it is ever whole in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, GenerationConfig
from transformers.utils.logging import disable_progress_bar

from agentgym_rl.core import ConfigError, TensorHead, parse_json, tensor_heads
from agentgym_rl.runtime import give_back_large_pieces

from .files import TORCH_DTYPES, read_at
from .source import LOAD_ERRORS, Piece, SourceNames, set_own_attention, some

Rounded = Callable[[nn.Module], Iterable[Tensor]]
"""A function that chooses the parameters of a model that are loaded in bfloat16."""
_FLOATS = ("F64", "F32", "F16", "BF16")
_INTEGERS = ("I64", "I32", "I16", "I8", "U8", "BOOL")
_GENERATION = "generation_config.json"
_MANY = 1 << 28  # parameters from which a rank rather saves memory than time
_AT_ONCE = 16 << 20
"""The bytes of a file that are in memory before they have the parameter's dtype."""


def load_whole(folder: Path, *, dtype: torch.dtype) -> tuple[Any, SourceNames]:
    """Return the causal language model in `folder`, and the names of its tensors there.

    Raises:
        ConfigError: transformers cannot load it; or the folder lacks a tensor of the model, which
            would be random, has a tensor that the model ignores, or has names that cannot be
            restored.
    """
    model, names, slices, converted = load_slices(folder, dtype=dtype, rank=0, size=1)
    replace(model, {it: nn.Parameter(t, it.requires_grad) for it, t in slices.items()})
    own = model.state_dict()
    names.check(names.changed(names.of_piece(piece, own)) for piece in converted)
    if (folder / _GENERATION).is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model, names


def load_outline(folder: Path, *, dtype: torch.dtype) -> tuple[Any, SourceNames]:
    """Return the model in `folder` on the device "meta", and the names of its tensors there: only
    names and shapes are compared, and no numbers are read.

    Raises:
        ConfigError: see `load_whole`.
    """
    with _refusing(folder) as heads:
        return _outline(folder, heads, dtype=dtype)


class Loaded(NamedTuple):
    """A model of which a rank has slices."""

    model: Any
    """The model: parameters are on the device "meta", and buffers have their numbers."""
    names: SourceNames
    slices: dict[nn.Parameter, Tensor]
    """This rank's rows of each parameter, on the CPU."""
    converted: list[Piece]
    """What transformers made from other tensors of the folder, in the pieces that can be converted
    back."""


def load_slices(
    folder: Path,
    *,
    dtype: torch.dtype,
    rank: int,
    size: int,
    rounded: Rounded = lambda model: (),
) -> Loaded:
    """Return the model in `folder`, and rank `rank`'s rows of its parameters, when these are
    divided among `size` ranks as FSDP2 does.

    The rows of those that `rounded` chooses, and that transformers does not convert, are in
    bfloat16 from the first byte; the parameters themselves have `dtype` nevertheless.

    A rank reads its own rows alone, except of what transformers converts (experts of a layer that
    become one tensor): these are read, converted and cut one after the other.

    Raises:
        ConfigError: see `load_whole`.
    """
    slices: dict[nn.Parameter, Tensor] = {}

    def cut(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:
            return None
        kept: Any = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        kept._is_hf_initialized = True  # or transformers would draw random numbers
        if parameter.untyped_storage().nbytes() >= parameter.nbytes:  # one that was read
            slices[kept] = parameter.detach()[rows_of(parameter.shape, rank, size)].clone()
        return kept

    with _refusing(folder) as heads:
        outline, names = _outline(folder, heads, dtype=dtype)
        own = _own(outline)
        if size > 1 and sum(it.numel() for it in outline.parameters()) > _MANY:
            give_back_large_pieces()  # each block is gathered and freed in every pass
        plain = names.unchanged(own)
        known = set(plain.values())
        stored = {name: _Stored(head, dtype, name not in known) for name, head in heads.items()}
        hook = register_module_parameter_registration_hook(cut)  # pyright: ignore[reportArgumentType]
        try:
            # In other threads, transformers would read all tensors before the first is cut.
            os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
            model = _made(folder, stored, dtype=dtype)
        finally:
            hook.remove()
        _tie(model, names.tied)
        short = set(rounded(model))
        for name, tensor in model.state_dict(keep_vars=True).items():
            if name in plain and isinstance(tensor, nn.Parameter):
                part = rows_of(tensor.shape, rank, size)
                kept = torch.bfloat16 if tensor in short else tensor.dtype
                slices[tensor] = read_rows(heads[plain[name]], part, dtype=kept)
            elif name in plain:  # a buffer, which each rank has
                _set(model, name, read_rows(heads[plain[name]], dtype=tensor.dtype))
    slices = {parameter: slices[parameter] for parameter in model.parameters()}
    pieces = names.pieces(own) if own.keys() - plain.keys() else []
    return Loaded(model, names, slices, [it for it in pieces if not plain.keys() >= set(it.own)])


def rows_of(shape: tuple[int, ...], rank: int, size: int) -> Any:
    """Return the index of the rows that a rank has of a tensor: those of `torch.chunk`."""
    if not shape or size == 1:
        return ...
    each = -(-shape[0] // size)
    return slice(min(rank * each, shape[0]), min((rank + 1) * each, shape[0]))


def read_rows(head: TensorHead, part: Any = ..., *, dtype: torch.dtype) -> Tensor:
    """Return the rows `part` of a tensor in a file, or all, as `dtype`.

    Raises:
        OSError: the file cannot be read.
    """
    stored = TORCH_DTYPES[head.dtype]
    shape, start = torch.Size(head.shape), head.start
    if part is not ...:
        row = (head.stop - head.start) // max(1, head.shape[0])
        shape, start = torch.Size((part.stop - part.start, *shape[1:])), start + part.start * row
    found = torch.empty(shape, dtype=dtype)
    flat, at_once = found.view(-1), _AT_ONCE // stored.itemsize
    with head.file.open("rb", buffering=0) as file:
        for begin in range(0, len(flat), at_once):
            target = flat[begin : begin + at_once]
            data = torch.empty(len(target), dtype=stored)
            place = start + begin * stored.itemsize
            if not read_at(file.fileno(), data.view(torch.uint8).numpy(), place):
                raise OSError(f"{head.file} is cut short")
            target.copy_(data)
    return found


class _Stored:
    """A tensor of a file, which transformers reads by `[...]`; if it is not `read`, a stand-in of
    its shape that takes no memory."""

    def __init__(self, head: TensorHead, dtype: torch.dtype, read: bool) -> None:
        stored = TORCH_DTYPES[head.dtype]
        self._head, self._read = head, read
        self._dtype = dtype if stored.is_floating_point else stored

    def __getitem__(self, index: Any) -> Tensor:
        if self._read:
            return read_rows(self._head, dtype=TORCH_DTYPES[self._head.dtype])[index]
        return torch.empty((), dtype=self._dtype).expand(self._head.shape)


@contextmanager
def _refusing(folder: Path) -> Iterator[dict[str, TensorHead]]:
    """Yield the headers of the tensors in a folder; what goes wrong while they are loaded is a
    ConfigError."""
    # Some masked shapes end in an error: https://github.com/pytorch/pytorch/issues/190321.
    torch.backends.cuda.enable_cudnn_sdp(False)
    heads = tensor_heads(folder)
    _check_plain(folder, {head.dtype for head in heads.values()})
    disable_progress_bar()
    try:
        yield heads
    except ConfigError:
        raise
    except LOAD_ERRORS as error:
        raise ConfigError(
            f"cannot load a causal language model from {folder}: {error}. Does config.json "
            "describe these weights?"
        ) from error


def _outline(
    folder: Path, heads: Mapping[str, TensorHead], *, dtype: torch.dtype
) -> tuple[Any, SourceNames]:
    stored = {
        name: torch.empty(head.shape, dtype=TORCH_DTYPES[head.dtype], device="meta")
        for name, head in heads.items()
    }
    model = _made(folder, stored, dtype=dtype, device_map={"": "meta"})
    names = SourceNames(model, folder)
    if copies := _copies(model, names.unchanged(_own(model)), heads):
        _tie(model, copies)
        names = SourceNames(model, folder)
    return model, names


def _made(folder: Path, stored: Mapping[str, Any], **how: Any) -> Any:
    """Return the model in `folder` with the numbers of `stored`."""
    config: Any = AutoConfig.from_pretrained(folder, local_files_only=True)
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if kind.config_class == config.sub_configs.get("text_config"):
        config = config.get_text_config()
    model, found = kind.from_pretrained(
        None,
        config=config,
        state_dict=dict(stored),
        ignore_mismatched_sizes=True,  # reported below
        output_loading_info=True,
        **how,
    )
    name = type(model).__name__
    for key, what in (
        ("missing_keys", f"lacks tensors that {name} has; they would be made up at random"),
        ("mismatched_keys", f"has tensors of other shapes than {name}"),
        (
            "unexpected_keys",
            f"has tensors that {name} does not know, and would lose (if they are no part of the "
            f"language model, save that alone: {name}.from_pretrained(…).save_pretrained(…))",
        ),
        ("error_msgs", f"cannot be loaded as {name}"),
    ):
        if bad := sorted(_shown(it) for it in found[key]):
            raise ConfigError(f"{folder} {what}: {some(bad)}")
    set_own_attention(model)
    return model


def _own(model: Any) -> dict[str, Tensor]:
    """Return the tensors of an outline by the model's own names, tied ones once."""
    state = model.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(state.items())}
    return {name: t.detach() for name, t in state.items() if first[id(t)] == name}


def _copies(
    model: Any, plain: Mapping[str, str], heads: Mapping[str, TensorHead]
) -> dict[str, str]:
    """Return the parameters that the model ties, each with its source, and of which the folder has
    equal copies. transformers ties them, too, once it sees their numbers."""
    return {
        name: source
        for name, source in (getattr(model, "all_tied_weights_keys", None) or {}).items()
        if model.get_parameter(name) is not model.get_parameter(source)
        and plain.keys() >= {name, source}
        and torch.equal(*(read_rows(heads[plain[it]], dtype=model.dtype) for it in (name, source)))
    }


def _tie(model: Any, sources: Mapping[str, str]) -> None:
    for name, source in sources.items():
        _set(model, name, attrgetter(source)(model))


def _set(model: Any, name: str, tensor: Tensor) -> None:
    layer, _, last = name.rpartition(".")
    setattr(model.get_submodule(layer), last, tensor)


def _check_plain(folder: Path, dtypes: set[str]) -> None:
    """Check that the weights are not quantized: quantized weights cannot be trained or
    published."""
    config = parse_json((folder / "config.json").read_text())
    quantized = config.get("quantization_config") or {}
    bad = sorted(dtypes - {*_FLOATS, *_INTEGERS})
    if quantized or bad:
        method = quantized.get("quant_method") or ", ".join(bad) or "an unnamed method"
        raise ConfigError(
            f"the weights in {folder} are quantized ({method}): only plain ones can be trained. "
            "Use the model's bfloat16 version, or load it with transformers "
            "(dequantize=True in its quantization config) and save that"
        )


def _shown(found: Any) -> str:
    """Return a name, or a name with the shapes of file and model."""
    if not isinstance(found, tuple):
        return str(found)
    name, file, model = found
    return f"{name} is {tuple(file)}, not {tuple(model)}"


def replace(model: nn.Module, others: Mapping[nn.Parameter, nn.Parameter]) -> None:
    """Replace parameters of a model by others, wherever it has them."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter in others:
                module._parameters[name] = others[parameter]
