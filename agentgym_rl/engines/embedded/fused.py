"""The fused weights of Qwen2-, Qwen3- and Llama-style models, for few, large operations.

Legend: H query heads, K key-value heads, D head dimension, G = H / K.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

_ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""The RoPE variants whose frequencies do not depend on the present sequence."""


@dataclass(frozen=True, slots=True)
class FusedShape:
    """The dimensions of a supported model."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float

    @classmethod
    def of(cls, module: Any) -> FusedShape | str:
        """Return the shape of a supported model, or the reason why the model is not supported."""
        config = module.config
        if type(module).__name__ not in _ARCHITECTURES:
            return f"{type(module).__name__} is not one of {', '.join(_ARCHITECTURES)}"
        if config.hidden_act != "silu":
            return f"hidden_act {config.hidden_act} is not silu"
        rope = getattr(config, "rope_parameters", None) or {}
        if rope.get("rope_type", "default") not in _STATIC_ROPE:
            return f"rope_type {rope.get('rope_type')} is not one of {', '.join(_STATIC_ROPE)}"
        if rope.get("partial_rotary_factor", 1.0) != 1.0:
            return "RoPE covers only part of each head"
        if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
            return "some layers do not use full attention"
        heads = config.num_attention_heads
        return cls(
            num_layers=config.num_hidden_layers,
            num_heads=heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            eps=config.rms_norm_eps,
        )


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """A layer; biases and qk-norm are None if the model has none."""

    norm: Tensor
    qkv: Tensor
    """The projections to queries, keys and values, [(H + 2K) D, hidden]."""
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    """The norms of queries and keys, [H + K, D]."""
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class FusedWeights:
    """The weights of a model, ready to decode; never changed, only replaced together."""

    embed: Tensor
    layers: tuple[FusedLayer, ...]
    norm: Tensor
    head: Tensor

    def to(self, device: torch.device | None) -> FusedWeights:
        """Return the same weights on another device; None: without any numbers."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device) if device is not None else tensor.new_empty(0)

        def moved_layer(layer: FusedLayer) -> FusedLayer:
            parts: dict[str, Any] = {}
            for part in fields(layer):
                tensor = getattr(layer, part.name)
                parts[part.name] = None if tensor is None else moved(tensor)
            return FusedLayer(**parts)

        embed = moved(self.embed)
        return FusedWeights(
            embed=embed,
            layers=tuple(map(moved_layer, self.layers)),
            norm=moved(self.norm),
            head=embed if self.head is self.embed else moved(self.head),
        )

    @property
    def num_bytes(self) -> int:
        """Return the memory of all weights in bytes, a tied head counted once."""
        layers = [getattr(layer, part.name) for layer in self.layers for part in fields(layer)]
        tensors = [self.embed, self.norm, self.head, *(it for it in layers if it is not None)]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], shape: FusedShape) -> FusedWeights:
        """Fuse tensors named as in the Hugging Face checkpoint (a tied head may be absent)."""
        embed = tensors["model.embed_tokens.weight"]
        return cls(
            embed=embed,
            layers=tuple(_layer(tensors, index, shape) for index in range(shape.num_layers)),
            norm=tensors["model.norm.weight"],
            head=tensors.get("lm_head.weight", embed),
        )


def _layer(tensors: Mapping[str, Tensor], index: int, shape: FusedShape) -> FusedLayer:
    prefix = f"model.layers.{index}."
    attention, mlp = prefix + "self_attn.", prefix + "mlp."

    def joined(base: str, names: tuple[str, ...], kind: str) -> Tensor | None:
        parts = [tensors.get(f"{base}{name}_proj.{kind}") for name in names]
        present = [part for part in parts if part is not None]
        return torch.cat(present).detach() if len(present) == len(parts) else None

    def weight(base: str, *names: str) -> Tensor:
        found = joined(base, names, "weight")
        assert found is not None, f"{base}: no weight of {names}"
        return found

    query_norm = tensors.get(f"{attention}q_norm.weight")
    qk_norm = None
    if query_norm is not None:
        key_norm = tensors[f"{attention}k_norm.weight"]
        qk_norm = torch.cat(
            [
                query_norm.expand(shape.num_heads, shape.head_dim),
                key_norm.expand(shape.num_kv_heads, shape.head_dim),
            ]
        ).detach()
    return FusedLayer(
        norm=tensors[f"{prefix}input_layernorm.weight"],
        qkv=weight(attention, "q", "k", "v"),
        qkv_bias=joined(attention, ("q", "k", "v"), "bias"),
        qk_norm=qk_norm,
        out=weight(attention, "o"),
        out_bias=joined(attention, ("o",), "bias"),
        mlp_norm=tensors[f"{prefix}post_attention_layernorm.weight"],
        gate_up=weight(mlp, "gate", "up"),
        gate_up_bias=joined(mlp, ("gate", "up"), "bias"),
        down=weight(mlp, "down"),
        down_bias=joined(mlp, ("down",), "bias"),
    )
