"""Attention within packed rows: causal inside a row, with no attention across rows; and of rows
with a common beginning, from each row's own tokens to those that it shares."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from agentgym_rl.algo.packing import Branches
from agentgym_rl.algo.prefixes import MOST_COPIES
from agentgym_rl.core import TrainerError

SEGMENT_SDPA = "seg_rows"
"""The name under which transformers models find `segment_attention`; without "sdpa", which
transformers refuses in the name for models that its own SDPA cannot compute."""
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
    branches: Branches | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,  # [H], the logits of attention sinks
    **others: Any,
) -> tuple[Tensor, None]:
    """Return [1, T, H, D] by torch's SDPA, one row at a time; a transformers attention function.
    Capped scores, which SDPA lacks, are computed by plain operations.

    The computation row by row is exact (bit-equal to the unpacked forward), needs no T·T mask and,
    on a CPU, is as fast as padding. The row boundaries come in `cu_seq_lens_q`, the argument that
    variable-length flash attention takes; with `branches` they are those of the pieces.

    Raises:
        TrainerError: there are no boundaries, or the attention variant is not supported here.
    """
    _refuse_variants(others, dropout)
    if cu_seq_lens_q is None:
        raise TrainerError("packed attention: no row boundaries")
    lengths = cu_seq_lens_q.diff().tolist()
    if branches is not None:
        _refuse_variants({"softcap": softcap, "s_aux": s_aux}, dropout)
        if 0 < _chunk_of(module) < branches.longest:
            raise TrainerError("packed attention: rows in chunks cannot share their beginnings")
        parts = (query, key, value, lengths, branches, scaling, sliding_window)
        if len(branches.paths) <= MOST_COPIES * query.shape[2]:
            output: Any = _tree(*parts)
        else:  # too many copies of keys to keep: they are made again for the gradient
            output = checkpoint(_tree, *parts, use_reentrant=False, preserve_rng_state=False)
        return output.transpose(1, 2).contiguous(), None
    lengths = _within_chunks(lengths, module)
    rows = zip(query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True)
    if softcap is not None:
        _refuse_variants({"s_aux": s_aux}, dropout)
        outputs = [_capped(q, k, v, scaling, sliding_window, softcap) for q, k, v in rows]
    elif s_aux is not None:
        outputs = [_with_sinks(q, k, v, scaling, sliding_window, s_aux) for q, k, v in rows]
    else:
        outputs = [_causal(q, k, v, scaling, sliding_window) for q, k, v in rows]
    return torch.cat(outputs, 2).transpose(1, 2).contiguous(), None


def _tree(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int],
    branches: Branches,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """Return [1, H, T, D], the attention of each piece's tokens to their row."""
    ends = [n + length for n, length in zip(branches.shared, lengths, strict=True) if n]
    keys, values = (iter(_gathered(x, branches.paths).split(ends, 2)) for x in (key, value))
    own = (x.split(lengths, 2) for x in (query, key, value))
    outputs = [
        _continued(q, next(keys), next(values), branches, scaling, window)
        if before
        else _causal(q, k, v, scaling, window)
        for before, q, k, v in zip(branches.shared, *own, strict=True)
    ]
    return torch.cat(outputs, 2)


def _gathered(x: Tensor, places: Tensor) -> Tensor:
    """Return the tokens of `x` [1, K, T, D] at `places`. The gradient of a token is summed in
    float32 over its copies, in the same order each time."""
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    return wide[0].transpose(0, 1)[places].transpose(0, 1)[None].to(x.dtype)


def _continued(
    q: Tensor,  # [1, H, n, D], the last n tokens of a row
    k: Tensor,  # [1, K, N, D], the complete row
    v: Tensor,
    branches: Branches,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """Return the attention of a row's last tokens to the complete row."""
    before = k.shape[2] - q.shape[2]
    outputs: list[Tensor] = []
    for start in range(0, q.shape[2], _QUERIES):
        part = q[:, :, start : start + _QUERIES]
        size, end = part.shape[2], before + start + part.shape[2]
        seen, read = (k, v) if end == k.shape[2] else (k[:, :, :end], v[:, :, :end])
        outputs.append(
            F.scaled_dot_product_attention(
                part, seen, read, scale=scaling, enable_gqa=True,
                attn_mask=_mask(branches, size, end, window, like=q),
            )
        )  # fmt: skip
    return torch.cat(outputs, 2) if len(outputs) > 1 else outputs[0]


_QUERIES = 256
"""The number of queries that one mask is for: masks of long rows would take much memory."""


def _mask(branches: Branches, size: int, end: int, window: int | None, *, like: Tensor) -> Tensor:
    """Return the mask [size, end] of the last `size` tokens among `end`: a part of one mask that is
    made once in a forward, since it depends only on distances."""
    made = branches.masks.get((window, like.dtype))
    if made is None:
        most = min(_QUERIES, branches.longest - min(n for n in branches.shared if n))
        query = torch.arange(most, device=like.device)[:, None]
        distance = query - torch.arange(-branches.longest, most, device=like.device)
        hidden = distance < 0
        if window is not None:
            hidden |= distance >= window
        made = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
        made.masked_fill_(hidden, -torch.inf)
        branches.masks[window, like.dtype] = made
    start = branches.longest - (end - size)
    part = made[:size, start : start + end]
    return part if part.device.type == "cpu" else part.contiguous()  # GPU kernels need it


def _causal(q: Tensor, k: Tensor, v: Tensor, scaling: float | None, window: int | None) -> Tensor:
    length = q.shape[2]
    if window is None or length <= window:
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scaling, enable_gqa=True
        )
    band = _band(length, window, q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=band, scale=scaling, enable_gqa=True)


def _with_sinks(
    q: Tensor, k: Tensor, v: Tensor, scaling: float | None, window: int | None, sinks: Tensor
) -> Tensor:
    """Return what `_causal` does, with attention sinks (gpt-oss): in each softmax a sink has a
    score, sinks [H], and no value. It is one more key, and one more dimension of all heads gives
    its score; eight of them, as kernels want."""
    length, groups = q.shape[2], q.shape[1] // k.shape[1]
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    sink = F.pad((sinks.to(k.dtype) / scale).view(1, -1, 1, 1), (k.shape[-1], 7))
    q = F.pad(F.pad(q, (0, 1), value=1.0), (0, 7))
    k = torch.cat([sink, F.pad(k.repeat_interleave(groups, 1), (0, 8))], 2)
    v = F.pad(v.repeat_interleave(groups, 1), (0, 0, 1, 0))
    seen = F.pad(_band(length, window or length, q.device), (1, 0), value=True)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)


def _capped(
    q: Tensor, k: Tensor, v: Tensor, scaling: float | None, window: int | None, softcap: float
) -> Tensor:
    """Return what `_causal` does, with scores capped by tanh (Gemma 2); its memory is that of
    length x length."""
    length, groups = q.shape[2], q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = (scores / softcap).tanh() * softcap
    scores = scores.masked_fill(~_band(length, window or length, q.device), float("-inf"))
    return scores.softmax(-1, dtype=torch.promote_types(torch.float32, q.dtype)).to(v.dtype) @ v


def _band(length: int, window: int, device: torch.device) -> Tensor:
    """Return the mask [T, T] of the last `window` tokens that each of a row attends to."""
    position = torch.arange(length, device=device)
    distance = position[:, None] - position[None]
    return (distance >= 0) & (distance < window)


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

    Experimental: written against torch 2.11 to 2.13, not run yet.

    Raises:
        TrainerError: there are no boundaries or no GPU, or the attention variant is not supported.
    """
    _refuse_variants(others, dropout)
    if cu_seq_lens_q is None or max_length_q is None:
        raise TrainerError("packed attention: no row boundaries")
    if "window_size" not in _VARLEN_OPTIONS:
        raise TrainerError(f"trainer.attention 'varlen' needs torch 2.11, not {torch.__version__}")
    if query.device.type != "cuda":
        raise TrainerError(
            f"trainer.attention 'varlen' needs a GPU, and the model is on {query.device}; use rows"
        )
    q, k, v = (x[0].transpose(0, 1).to(torch.bfloat16) for x in (query, key, value))
    options: dict[str, Any] = {
        "window_size": (-1 if sliding_window is None else sliding_window - 1, 0),
    }
    if query.shape[1] != key.shape[1]:
        if "enable_gqa" in _VARLEN_OPTIONS:
            options["enable_gqa"] = True
        else:  # torch 2.11
            k, v = (x.repeat_interleave(query.shape[1] // key.shape[1], 1) for x in (k, v))
    boundaries, longest = cu_seq_lens_q, max_length_q
    if _chunk_of(module):
        lengths = _within_chunks(cu_seq_lens_q.diff().tolist(), module)
        longest = max(lengths)
        boundaries = F.pad(torch.tensor(lengths, device=query.device).cumsum(0), (1, 0)).int()
    output = varlen_attn(
        *(q, k, v, boundaries, boundaries, longest, longest), scale=scaling, **options
    )
    assert isinstance(output, Tensor)
    return output[None].to(query.dtype), None


_VARLEN_OPTIONS = inspect.signature(varlen_attn).parameters


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
