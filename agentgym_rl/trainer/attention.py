"""Attention within packed rows: causal inside a row, with no attention across rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from agentgym_rl.core.errors import TrainerError

SEGMENT_SDPA = "seg_sdpa"
"""The name under which transformers models find `segment_attention`."""
VARLEN = "seg_varlen"
"""The name under which transformers models find `varlen_attention`."""


def segment_attention(
    module: torch.nn.Module,
    query: Tensor,  # [1, H, T, D]
    key: Tensor,  # [1, K, T, D]; K divides H
    value: Tensor,  # [1, K, T, D]
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    cu_seq_lens_q: Tensor | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Return [1, T, H, D] by torch's SDPA, one row at a time; a transformers attention function.

    The computation row by row is exact (bit-equal to the unpacked forward), needs no T·T mask and,
    on a CPU, is as fast as padding. The row boundaries come in `cu_seq_lens_q`, the argument that
    variable-length flash attention takes.

    Raises:
        TrainerError: there are no boundaries, or the attention variant is not supported here.
    """
    _refuse_variants(others, dropout)
    if cu_seq_lens_q is None:
        raise TrainerError("packed attention: no row boundaries")
    lengths = _within_chunks(cu_seq_lens_q.diff().tolist(), module)
    rows = zip(query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True)
    outputs = [_causal(q, k, v, scaling, sliding_window) for q, k, v in rows]
    return torch.cat(outputs, 2).transpose(1, 2).contiguous(), None


def _causal(q: Tensor, k: Tensor, v: Tensor, scaling: float | None, window: int | None) -> Tensor:
    length = q.shape[2]
    if window is None or length <= window:
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scaling, enable_gqa=True
        )
    position = torch.arange(length, device=q.device)
    distance = position[:, None] - position[None]
    band = (distance >= 0) & (distance < window)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=band, scale=scaling, enable_gqa=True)


def varlen_attention(
    module: torch.nn.Module,
    query: Tensor,  # [1, H, T, D]
    key: Tensor,  # [1, K, T, D]; K divides H
    value: Tensor,  # [1, K, T, D]
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Return [1, T, H, D] for all rows at once by torch's variable-length flash attention, in
    bfloat16.

    Experimental: written against torch 2.13, not run yet.

    Raises:
        TrainerError: there are no boundaries or no GPU, or the attention variant is not supported.
    """
    _refuse_variants(others, dropout)
    if cu_seq_lens_q is None or max_length_q is None:
        raise TrainerError("packed attention: no row boundaries")
    if query.device.type != "cuda":
        raise TrainerError(
            f"trainer.attention 'varlen' needs a GPU, and the model is on {query.device}; use rows"
        )
    q, k, v = (x[0].transpose(0, 1).to(torch.bfloat16) for x in (query, key, value))
    window = (-1 if sliding_window is None else sliding_window - 1, 0)
    boundaries, longest = cu_seq_lens_q, max_length_q
    if _chunk_of(module):
        lengths = _within_chunks(cu_seq_lens_q.diff().tolist(), module)
        longest = max(lengths)
        boundaries = F.pad(torch.tensor(lengths, device=query.device).cumsum(0), (1, 0)).int()
    output = varlen_attn(
        *(q, k, v, boundaries, boundaries, longest, longest),
        scale=scaling,
        window_size=window,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(output, Tensor)
    return output[None].to(query.dtype), None


def _chunk_of(module: torch.nn.Module) -> int:
    """Return the chunk size, in tokens, of a layer with chunked attention (Llama 4); 0 for any
    other layer."""
    config: Any = getattr(module, "config", None)
    kinds, layer = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    if kinds is None or layer is None or kinds[layer] != "chunked_attention":
        return 0
    return int(config.attention_chunk_size)


def _within_chunks(lengths: list[int], module: torch.nn.Module) -> list[int]:
    """Return the lengths of the pieces that attend only to themselves: the rows or, in a layer with
    chunked attention, their chunks."""
    chunk = _chunk_of(module)
    if not chunk:
        return lengths
    return [min(chunk, n - start) for n in lengths for start in range(0, n, chunk)]


def _refuse_variants(others: Mapping[str, Any], dropout: float) -> None:
    odd = [name for name in ("softcap", "s_aux") if others.get(name) is not None]
    if odd or dropout:
        raise TrainerError(f"packed attention: not supported here: {odd or 'dropout'}")


AttentionInterface.register(VARLEN, varlen_attention)
AttentionInterface.register(SEGMENT_SDPA, segment_attention)
