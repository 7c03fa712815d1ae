"""The numbers of a model on which memory depends, found without its weights: a model of its
config.json on the device "meta", which has shapes and no bytes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

from agentgym_rl.core import ConfigError
from agentgym_rl.core.model_folder import Shapes
from agentgym_rl.trainer import blocks_of
from agentgym_rl.trainer.usage import num_experts
from agentgym_rl.weights import PART_BYTES

from .trainer import FLOAT

_COUNTED = "arl_counted"
_TOKENS = 256
"""The tokens of a trial. Each keeps as many bytes as in a pass of any other length."""


@dataclass(frozen=True, slots=True)
class Anatomy:
    """The numbers of a model, and the bytes of its passes."""

    shapes: Shapes
    """The shapes of its parameters; a tied one is there once."""
    vocabulary: int
    hidden: int
    """The length of a hidden state."""
    num_blocks: int
    largest_block: int
    """The parameters of the largest block, which FSDP gathers at once."""
    outside: int
    """The parameters outside of blocks: embeddings, the last norm, the output layer."""
    kept: float
    """The bytes that a block keeps of a token for the gradient."""
    itemsize: int
    """The bytes of a number in a block's activations."""
    blocks: tuple[tuple[str, ...], ...] = ()
    """The names of the parameters of each block."""
    largest_piece: int = 0
    """The numbers that a rank gathers at once while a version is written: the largest parameter, or
    some experts of one that joins them."""

    @property
    def total(self) -> int:
        """Return the number of parameters."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def of_rank(self, share: Callable[[str], float]) -> Anatomy:
        """Return the numbers of a rank that computes with this share of each parameter, by its
        name."""
        sizes = {name: share(name) * math.prod(shape) for name, shape in self.shapes.items()}
        blocks = [sum(sizes[name] for name in names) for names in self.blocks]
        words = share("lm_head.weight")
        return replace(
            self,
            largest_block=int(max(blocks, default=0)),
            outside=int(sum(sizes.values()) - sum(blocks)),
            vocabulary=math.ceil(self.vocabulary * words),
        )

    @property
    def head(self) -> int:
        """Return the parameters of the output layer."""
        return self.vocabulary * self.hidden


@cache
def anatomy_of(folder: Path, *, bfloat16: bool, frozen: bool = False) -> Anatomy:
    """Return the numbers of the model of a folder's config.json; its blocks compute in bfloat16, or
    in float32. `frozen`: only an adapter of all linear layers trains.

    Raises:
        ConfigError: transformers has no such causal language model.
    """
    AttentionInterface.register(_COUNTED, _attention)
    try:
        config = AutoConfig.from_pretrained(folder).get_text_config()
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"the memory of the model in {folder} is not known: {error}") from error
    blocks = blocks_of(model)
    sizes = [sum(p.numel() for p in block.parameters()) for block in blocks]
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    names = {id(p): name for name, p in model.named_parameters()}
    total = sum(p.numel() for p in model.parameters())
    # transformers' product of grouped matrices, which mixtures use, is only in bfloat16 on "meta".
    mixture = num_experts(config) > 0
    halves = bfloat16 or mixture
    two, one = (_kept(config, n, halves=halves, frozen=frozen) for n in (2, 1))
    return Anatomy(
        shapes=shapes,
        vocabulary=int(config.vocab_size),
        hidden=int(config.hidden_size),
        num_blocks=len(blocks),
        largest_block=max(sizes, default=0),
        outside=total - sum(sizes),
        kept=(two - one) * (2 if halves and not bfloat16 else 1),
        itemsize=2 if bfloat16 else 4,
        blocks=tuple(tuple(names[id(p)] for p in block.parameters()) for block in blocks),
        largest_piece=max((_piece(model, n, p) for n, p in model.named_parameters()), default=0),
    )


def _piece(model: Any, name: str, parameter: Tensor) -> int:
    """Return the numbers of a parameter that are gathered at once; its experts are apart in a
    folder if transformers would save it as tensors with a dimension less."""
    if parameter.ndim < 3 or FLOAT * parameter.numel() <= PART_BYTES:
        return parameter.numel()
    made = revert_weight_conversion(model, {name: parameter.detach()})
    if any(tensor.ndim == parameter.ndim for tensor in made.values()):
        return parameter.numel()
    row = parameter[0].numel()
    return row * max(1, PART_BYTES // (FLOAT * row))


def _kept(config: Any, num_blocks: int, *, halves: bool, frozen: bool) -> float:
    """Return the bytes that the first blocks keep of a token for the gradient. An adapter needs the
    inputs of linear layers, as their weights do, and `frozen` norms need less."""
    few = copy.deepcopy(config)
    few.num_hidden_layers = num_blocks
    if getattr(few, "layer_types", None):
        few.layer_types = few.layer_types[:num_blocks]
    dtype = torch.bfloat16 if halves else torch.float32
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(few, dtype=dtype, attn_implementation=_COUNTED)
    for parameter in model.parameters():
        parameter.requires_grad_(not frozen or parameter.ndim > 1)
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    found: dict[int, int] = {}
    alive: list[Tensor] = []  # so that no other storage takes the place of one that was counted

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            found[storage._cdata] = storage.nbytes()
            alive.append(tensor)
        return tensor

    ids = torch.zeros(1, _TOKENS, dtype=torch.long, device="meta")
    with saved_tensors_hooks(note, lambda tensor: tensor):
        model.eval().base_model(ids, position_ids=ids, attention_mask=None, use_cache=False)
    return sum(found.values()) / _TOKENS


class _Attention(torch.autograd.Function):
    """An attention that keeps what flash attention does, and computes nothing."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = query.new_empty(*query.shape[:-1], value.shape[-1])  # not always of a key's length
        sums = torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device)
        ctx.save_for_backward(query, key, value, output, sums)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise NotImplementedError("the pass of a trial has no gradient")


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> tuple[Tensor, None]:
    output: Any = _Attention.apply(query, key, value)
    return output.transpose(1, 2).contiguous(), None
