"""Decoding of Qwen2-, Qwen3- and Llama-style models by plain functions on fused weights: few, large
operations a layer, and no module overhead.

Legend: b rows, n prompts, L tokens, T cached length, H query heads, K key-value heads, D head
dimension, G = H / K.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .batch import SlotKV
from .decoder import Decoder, Segment, Swap

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


class FusedDecoder(Decoder):
    """A decoder of a supported model (`FusedShape.of`); equal to the model's forward up to
    rounding."""

    name = "fused"

    def __init__(
        self, weights: FusedWeights, shape: FusedShape, rope: tuple[Tensor, Tensor], kv: SlotKV
    ) -> None:
        self._weights = weights
        self._shape = shape
        self._cos, self._sin = rope
        self._kv = kv
        self.device = weights.embed.device
        self._slots = torch.arange(0, device=self.device)
        self._columns = torch.arange(self._cos.shape[0], device=self.device)
        head = (shape.num_kv_heads, shape.head_dim)
        for _ in range(shape.num_layers):
            kv.add_layer(head, head)

    def prefill(self, first: int, rows: Sequence[Sequence[int]]) -> None:
        shape = self._shape
        length, last = max(map(len, rows)), first + len(rows)
        self._kv.reserve(last, length)
        # Right padding is harmless under a causal mask; its keys are overwritten before use.
        padded = [[*row, *[0] * (length - len(row))] for row in rows]
        x = F.embedding(torch.tensor(padded, device=self.device), self._weights.embed)
        cos, sin = self._cos[:length, None], self._sin[:length, None]
        for index, layer in enumerate(self._weights.layers):
            queries, keys, values = self._qkv(x, layer, cos, sin)
            keys, values = keys.transpose(1, 2), values.transpose(1, 2)
            cached_keys, cached_values = self._kv.layers[index]
            cached_keys[first:last, :, :, :length] = keys.transpose(2, 3)
            cached_values[first:last, :, :length] = values
            if index == shape.num_layers - 1:
                return  # only the cache is needed
            mixed = F.scaled_dot_product_attention(
                queries.transpose(1, 2), keys, values, is_causal=True, enable_gqa=True
            )
            x = self._feed_forward(x, mixed.transpose(1, 2).flatten(2), layer)

    def decode(self, tokens: Tensor, positions: Tensor, segments: Sequence[Segment]) -> Tensor:
        shape, weights = self._shape, self._weights
        rows, length = len(tokens), max(segment.length for segment in segments)
        self._kv.reserve(rows, length)
        if len(self._slots) != rows:
            self._slots = torch.arange(rows, device=self.device)
        x = F.embedding(tokens, weights.embed)
        cos, sin = self._cos[positions, None], self._sin[positions, None]
        mask = torch.zeros(rows, 1, 1, length, dtype=x.dtype, device=self.device)
        mask.masked_fill_(self._columns[:length] > positions[:, None, None, None], float("-inf"))
        mask = mask.expand(-1, shape.num_kv_heads, -1, -1).flatten(0, 1)  # [b K, 1, T]
        for index, layer in enumerate(weights.layers):
            queries, keys, values = self._qkv(x, layer, cos, sin)
            cached_keys, cached_values = self._kv.layers[index]
            cached_keys[self._slots, :, :, positions] = keys
            cached_values[self._slots, :, positions] = values
            mixed = self._attend(queries, cached_keys, cached_values, mask, segments)
            x = self._feed_forward(x, mixed, layer)
        x = F.rms_norm(x, (x.shape[-1],), weights.norm, shape.eps)
        return F.linear(x, weights.head).float()

    def move(self, source: int, target: int, length: int) -> None:
        self._kv.move(source, target, length)

    def free_cache(self) -> None:
        self._kv.clear()

    def move_weights(self, device: torch.device | None) -> None:
        self._weights = self._weights.to(device)

    @property
    def weights_bytes(self) -> int:
        return self._weights.num_bytes

    @property
    def cache_bytes(self) -> int:
        return self._kv.num_bytes

    def stage(self, tensors: Mapping[str, Tensor]) -> Swap:
        fused = FusedWeights.of(tensors, self._shape)

        def swap() -> None:
            self._weights = fused

        return swap

    def _qkv(
        self, x: Tensor, layer: FusedLayer, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries [.., H, D], rotated keys and values [.., K, D] of x [..,
        hidden]."""
        shape = self._shape
        heads, kv_heads, dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        h = F.rms_norm(x, (x.shape[-1],), layer.norm, shape.eps)
        qkv = F.linear(h, layer.qkv, layer.qkv_bias).unflatten(-1, (heads + 2 * kv_heads, dim))
        qk, values = qkv.split((heads + kv_heads, kv_heads), dim=-2)
        if layer.qk_norm is not None:
            qk = F.rms_norm(qk, (dim,), None, shape.eps) * layer.qk_norm
        # `sin` has the sign of the rotation, so that rotating a head is one roll.
        qk = torch.addcmul(qk * cos, qk.roll(dim // 2, -1), sin)
        queries, keys = qk.split((heads, kv_heads), dim=-2)
        return queries, keys, values

    def _attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        segments: Sequence[Segment],
    ) -> Tensor:
        """Return [b, H D] from queries [b, H, D], all cached keys and values, mask [b K, 1, T].

        The batched products are over (row, key head), with its G queries in the place of a
        sequence: on a CPU about twice as fast as scaled_dot_product_attention with one query a row.
        """
        shape, rows = self._shape, len(queries)
        per_row = shape.num_kv_heads
        queries = (queries * shape.head_dim**-0.5).view(rows * per_row, -1, shape.head_dim)
        mixed = torch.empty_like(queries)
        for start, stop, length in segments:
            mine = slice(start * per_row, stop * per_row)
            near = keys[start:stop, :, :, :length].flatten(0, 1)
            scores = torch.baddbmm(mask[mine, :, :length], queries[mine], near)
            weights = scores.softmax(dim=-1, dtype=torch.float32).to(values.dtype)
            near = values[start:stop, :, :length].flatten(0, 1)
            torch.bmm(weights, near, out=mixed[mine])
        return mixed.view(rows, -1)

    def _feed_forward(self, x: Tensor, mixed: Tensor, layer: FusedLayer) -> Tensor:
        """Return the output of a layer from that of its attention."""
        x = x + F.linear(mixed, layer.out, layer.out_bias)
        h = F.rms_norm(x, (x.shape[-1],), layer.mlp_norm, self._shape.eps)
        gate, up = F.linear(h, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, layer.down, layer.down_bias)


def rope_tables(module: Any, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cos [length, D] and signed sin [length, D] from the model's own frequencies."""
    rotary = module.model.rotary_emb
    positions = torch.arange(length, device=rotary.inv_freq.device, dtype=torch.float32)
    angles = torch.outer(positions, rotary.inv_freq.float())
    cos = angles.cos() * rotary.attention_scaling
    sin = angles.sin() * rotary.attention_scaling
    return torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype)
