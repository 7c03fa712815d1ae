"""Decoding of Qwen2-, Qwen3- and Llama-style models by plain functions on fused weights: few, large
operations a layer, and no module overhead.

Legend: b rows, n prompts, L tokens, T cached length, H query heads, K key-value heads, D head
dimension, G = H / K.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from agentgym_rl.weights import wide_linear

from .batch import SlotKV
from .cache import causal_mask, token_places
from .decoder import Decoder, Segment, Swap
from .linear import Linear, is_packed, is_transposed

_ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_EMBED, _NORM, _HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""The RoPE variants whose frequencies do not depend on the present sequence."""


def _layer_name(index: int) -> str:
    return f"model.layers.{index}."


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
    """A layer; `qk_norm` is None if the model has none."""

    norm: Tensor
    qkv: Linear
    """The projection to queries, keys and values, to (H + 2K) D."""
    qk_norm: Tensor | None
    """The norms of queries and keys, [H + K, D]."""
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class FusedWeights:
    """The weights of a model, ready to decode; never changed, only replaced together."""

    embed: Tensor
    layers: tuple[FusedLayer, ...]
    norm: Tensor
    head: Linear | None
    """The head; None: the embeddings are the head, too."""

    def to(self, device: torch.device | None) -> FusedWeights:
        """Return the same weights on another device; None: without any numbers."""

        def moved(part: Any) -> Any:
            if isinstance(part, Tensor):
                return part.to(device) if device is not None else part.new_empty(0)
            return part if part is None else part.to(device)

        def moved_layer(layer: FusedLayer) -> FusedLayer:
            return FusedLayer(**{it.name: moved(getattr(layer, it.name)) for it in fields(layer)})

        return FusedWeights(
            embed=moved(self.embed),
            layers=tuple(map(moved_layer, self.layers)),
            norm=moved(self.norm),
            head=moved(self.head),
        )

    @property
    def num_bytes(self) -> int:
        """Return the memory of all weights in bytes."""
        layers = [getattr(layer, part.name) for layer in self.layers for part in fields(layer)]
        return sum(
            part.nbytes if isinstance(part, Tensor) else part.num_bytes
            for part in (self.embed, self.norm, self.head, *layers)
            if part is not None
        )


@dataclass(frozen=True, slots=True)
class Fusion:
    """A recipe of `FusedWeights`."""

    shape: FusedShape
    dtype: torch.dtype
    """The dtype in which the matrices of layers multiply."""
    wide: torch.dtype
    """The dtype of everything else: embeddings, norms, the head, and all that flows between."""
    device: torch.device
    single_rows: bool = False
    """Whether rows are decoded one at a time."""

    def of(self, tensors: Mapping[str, Tensor]) -> FusedWeights:
        """Fuse tensors named as in the Hugging Face checkpoint (a tied head may be absent), one
        after the other: `tensors` may read each of them as late as here. They are kept where they
        fit as they are."""
        layers = tuple(self._layer(tensors, index) for index in range(self.shape.num_layers))
        return FusedWeights(layers=layers, **self._ends(tensors))

    def with_changes(
        self, tensors: Mapping[str, Tensor], same: Collection[str]
    ) -> Callable[[FusedWeights], FusedWeights]:
        """Fuse all tensors but those that are the `same` in the present weights, whole layers of
        them; return a function that completes the result with those of the present weights."""
        layers = {
            index: self._layer(tensors, index)
            for index in range(self.shape.num_layers)
            if f"{_layer_name(index)}input_layernorm.weight" not in same
        }
        ends = self._ends(tensors, same)

        def complete(present: FusedWeights) -> FusedWeights:
            whole = tuple(layers.get(i, layer) for i, layer in enumerate(present.layers))
            return replace(present, layers=whole, **ends)

        return complete

    def _ends(self, tensors: Mapping[str, Tensor], same: Collection[str] = ()) -> dict[str, Any]:
        """Return embeddings, last norm and head, without those that are the `same`."""
        ends: dict[str, Any] = {}
        if _EMBED not in same:
            ends["embed"] = self._tensor(tensors[_EMBED])
        if _NORM not in same:
            ends["norm"] = self._tensor(tensors[_NORM])
        if _HEAD in tensors:
            if _HEAD not in same:
                ends["head"] = self._linear([tensors[_HEAD]], None, self.wide)
        elif "embed" in ends:
            # Multiplied in one layout, looked up in the other.
            layouts = (is_packed, is_transposed)
            other = any(of(ends["embed"], single_rows=self.single_rows) for of in layouts)
            ends["head"] = self._linear([ends["embed"]], None, self.wide) if other else None
        return ends

    def _linear(self, parts: Sequence[Tensor], bias: Tensor | None, dtype: torch.dtype) -> Linear:
        return Linear.of(parts, bias, dtype=dtype, at=self.device, single_rows=self.single_rows)

    def _tensor(self, found: Tensor) -> Tensor:
        return found.to(self.device, self.wide)

    def _layer(self, tensors: Mapping[str, Tensor], index: int) -> FusedLayer:
        prefix = _layer_name(index)
        attention, mlp = prefix + "self_attn.", prefix + "mlp."

        def linear(base: str, *names: str) -> Linear:
            biases = [name for it in names if (name := f"{base}{it}_proj.bias") in tensors]
            return self._linear(
                [tensors[f"{base}{it}_proj.weight"] for it in names],
                torch.cat([tensors[name] for name in biases]) if biases else None,
                self.dtype,
            )

        return FusedLayer(
            norm=self._tensor(tensors[f"{prefix}input_layernorm.weight"]),
            qkv=linear(attention, "q", "k", "v"),
            qk_norm=self._qk_norm(tensors, attention),
            out=linear(attention, "o"),
            mlp_norm=self._tensor(tensors[f"{prefix}post_attention_layernorm.weight"]),
            gate_up=linear(mlp, "gate", "up"),
            down=linear(mlp, "down"),
        )

    def _qk_norm(self, tensors: Mapping[str, Tensor], attention: str) -> Tensor | None:
        if f"{attention}q_norm.weight" not in tensors:
            return None
        shape = self.shape
        query_norm, key_norm = (tensors[f"{attention}{it}_norm.weight"] for it in "qk")
        return self._tensor(
            torch.cat(
                [
                    query_norm.expand(shape.num_heads, shape.head_dim),
                    key_norm.expand(shape.num_kv_heads, shape.head_dim),
                ]
            )
        )


class FusedDecoder(Decoder):
    """A decoder of a supported model (`FusedShape.of`); equal to the model's forward up to
    rounding."""

    name = "fused"

    def __init__(
        self, weights: FusedWeights, fusion: Fusion, rope: tuple[Tensor, Tensor], kv: SlotKV
    ) -> None:
        self._weights = weights
        self._fusion = fusion
        self._shape = shape = fusion.shape
        self._cos, self._sin = rope
        self._kv = kv
        self.device = fusion.device
        self._slots = torch.arange(0, device=self.device)
        self._columns = torch.arange(self._cos.shape[0], device=self.device)
        head = (shape.num_kv_heads, shape.head_dim)
        for _ in range(shape.num_layers):
            kv.add_layer(head, head)
        self.reusable = kv

    def prefill(
        self, first: int, rows: Sequence[Sequence[int]], starts: Sequence[int] | None = None
    ) -> None:
        shape, last = self._shape, first + len(rows)
        # Right padding is harmless under a causal mask; its keys are overwritten before use.
        tokens, positions, length = token_places(rows, starts, self.device)
        mask, cos, sin = None, self._cos[:length, None], self._sin[:length, None]
        slots = torch.arange(first, last, device=self.device)[:, None]
        if starts is not None:
            mask = causal_mask(positions, length, self._cos.dtype)
            cos, sin = self._cos[positions, None], self._sin[positions, None]
        self._kv.reserve(last, length)
        x = F.embedding(tokens, self._weights.embed)
        for index, layer in enumerate(self._weights.layers):
            queries, keys, values = self._qkv(x, layer, cos, sin)
            cached_keys, cached_values = self._kv.layers[index]
            if mask is None:
                keys, values = keys.transpose(1, 2), values.transpose(1, 2)
                cached_keys[first:last, :, :, :length] = keys.transpose(2, 3)
                cached_values[first:last, :, :length] = values
            else:
                cached_keys[slots, :, :, positions] = keys
                cached_values[slots, :, positions] = values
                keys = cached_keys[first:last, :, :, :length].transpose(2, 3).contiguous()
                values = cached_values[first:last, :, :length]
            if index == shape.num_layers - 1:
                return  # only the cache is needed
            mixed = F.scaled_dot_product_attention(
                queries.transpose(1, 2),
                keys,
                values,
                attn_mask=mask,
                is_causal=mask is None,
                enable_gqa=True,
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
        return wide_linear(weights.embed, x) if weights.head is None else weights.head.wide(x)

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

    def stage(self, tensors: Mapping[str, Tensor], same: Collection[str] = ()) -> Swap:
        complete = self._fusion.with_changes(tensors, same)

        def swap() -> None:
            # Not before: meanwhile the present weights may have been moved to another device.
            self._weights = complete(self._weights)

        return swap

    def _qkv(
        self, x: Tensor, layer: FusedLayer, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries [.., H, D], rotated keys and values [.., K, D] of x [..,
        hidden]."""
        shape = self._shape
        heads, kv_heads, dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        h = F.rms_norm(x, (x.shape[-1],), layer.norm, shape.eps)
        qkv = layer.qkv(h).unflatten(-1, (heads + 2 * kv_heads, dim))
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
        x = x + layer.out(mixed)
        h = F.rms_norm(x, (x.shape[-1],), layer.mlp_norm, self._shape.eps)
        gate, up = layer.gate_up(h).chunk(2, dim=-1)
        return x + layer.down(F.silu(gate) * up)


def rope_tables(module: Any, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cos [length, D] and signed sin [length, D] from the model's own frequencies."""
    rotary = module.model.rotary_emb
    positions = torch.arange(length, device=rotary.inv_freq.device, dtype=torch.float32)
    angles = torch.outer(positions, rotary.inv_freq.float())
    cos = angles.cos() * rotary.attention_scaling
    sin = angles.sin() * rotary.attention_scaling
    return torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype)
