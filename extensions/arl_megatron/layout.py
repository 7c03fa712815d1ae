"""The parameters of Megatron-Core's `GPTModel`, each made of tensors of a Qwen3 folder: the
projections of a layer's queries, keys and values are one matrix, group after group of heads, and so
are the two of its gate. Ranks have parts of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Way = Literal["whole", "rows", "columns", "gate", "heads"]
"""How ranks divide a parameter: not at all, by its rows or columns; or by the rows of each of the
two matrices of a gate, or by groups of heads."""

_LAYER: Mapping[str, tuple[Way, tuple[str, ...]]] = {
    "input_layernorm": ("whole", ("input_layernorm",)),
    "self_attention.linear_qkv": ("heads", tuple(f"self_attn.{it}_proj" for it in "qkv")),
    "self_attention.q_layernorm": ("whole", ("self_attn.q_norm",)),
    "self_attention.k_layernorm": ("whole", ("self_attn.k_norm",)),
    "self_attention.linear_proj": ("columns", ("self_attn.o_proj",)),
    "pre_mlp_layernorm": ("whole", ("post_attention_layernorm",)),
    "mlp.linear_fc1": ("gate", ("mlp.gate_proj", "mlp.up_proj")),
    "mlp.linear_fc2": ("columns", ("mlp.down_proj",)),
}


@dataclass(frozen=True)
class Layout:
    """The layout of a model with the configuration `hf` of its folder, over `size` ranks, of which
    this one is `rank`."""

    hf: Mapping[str, Any]
    rank: int
    size: int

    def parameters(self) -> Iterator[tuple[str, Way, tuple[str, ...]]]:
        """Yield the name of each parameter, its division, and the names of its tensors."""
        yield "embedding.word_embeddings.weight", "rows", ("model.embed_tokens.weight",)
        for n in range(self.hf["num_hidden_layers"]):
            for name, (way, parts) in _LAYER.items():
                names = tuple(f"model.layers.{n}.{part}.weight" for part in parts)
                yield f"decoder.layers.{n}.{name}.weight", way, names
        yield "decoder.final_layernorm.weight", "whole", ("model.norm.weight",)
        if not self.hf["tie_word_embeddings"]:
            yield "output_layer.weight", "rows", ("lm_head.weight",)

    def part(self, way: Way, tensors: Sequence[Tensor]) -> Tensor:
        """Return this rank's part of the parameter that is made of these tensors."""
        if way == "whole":
            return tensors[0]
        if way == "columns":
            return tensors[0].chunk(self.size, 1)[self.rank]
        if way == "heads":
            groups = [it.unflatten(0, (self._groups, -1)) for it in tensors]
            tensors = [torch.cat(groups, 1).flatten(0, 1)]
        return torch.cat([it.chunk(self.size)[self.rank] for it in tensors])

    def tensors(self, way: Way, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors of a parameter, of which these are the parts of all ranks."""
        if way == "whole":
            return [parts[0]]
        if way == "gate":
            return [torch.cat([it.chunk(2)[half] for it in parts]) for half in (0, 1)]
        found = torch.cat(list(parts), 1 if way == "columns" else 0)
        if way != "heads":
            return [found]
        size, heads = self.hf["head_dim"], self.hf["num_attention_heads"] // self._groups
        groups = found.unflatten(0, (self._groups, -1)).split([heads * size, size, size], 1)
        return [it.flatten(0, 1) for it in groups]

    @property
    def _groups(self) -> int:
        return self.hf["num_key_value_heads"]
