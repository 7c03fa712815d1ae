"""Decoding by plain functions on fused weights: few operations a layer, no module overhead.

Legend: b rows, n prompts, L tokens, T cached length, H query heads, K key-value heads, D head
dimension, G = H / K.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .batch import SlotKV
from .decoder import Decoder, Segment, Swap
from .fused import FusedLayer, FusedShape, FusedWeights


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
