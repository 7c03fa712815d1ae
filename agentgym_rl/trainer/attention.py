"""Attention within packed rows: causal inside a row, with no attention across rows; and of rows
with a common beginning, from each row's own tokens to those that it shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from agentgym_rl.algo.prefixes import MOST_COPIES
from agentgym_rl.core import TrainerError, load_extension, load_extensions

from .spans import Pieces, Spans

SEGMENT_SDPA = "seg_rows"
"""The name under which transformers models find `segment_attention`; without "sdpa", which
transformers refuses in the name for models that its own SDPA cannot compute."""
ATTENTIONS = "attentions"
"""The group of entry points of attentions over all packed rows at once."""


class GpuAttention(ABC):
    """The contract of an attention over all packed rows at once, on GPUs. A package registers one
    in the group `agentgym_rl.attentions`, under the value of `trainer.attention` that demands it,
    and its functions with transformers, under the two names."""

    bfloat16: ClassVar[str]
    """The function for blocks that compute in bfloat16."""
    float32: ClassVar[str]
    """The function for others."""

    @abstractmethod
    def wrong(self, name: str, model: Any) -> str:
        """Return how the gradients of the function `name` differ from those of one row at a time,
        for heads of this model's size; "" if they do not."""


def gpu_attentions(wanted: str) -> list[GpuAttention]:
    """Return the attentions that a model on a GPU tries for `trainer.attention`.

    Raises:
        ConfigError: no installed package has the one that is demanded.
    """
    if wanted == "auto":
        return [*load_extensions(ATTENTIONS, of=GpuAttention).values()]
    return [] if wanted == "rows" else [load_extension(ATTENTIONS, wanted, of=GpuAttention)]


def segment_attention(
    module: torch.nn.Module,
    query: Tensor,  # [1, H, T, D]
    key: Tensor,  # [1, K, T, D]; K divides H
    value: Tensor,  # [1, K, T, D]
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    pieces: Pieces | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,  # [H], the logits of attention sinks
    **others: Any,
) -> tuple[Tensor, None]:
    """Return [1, T, H, D] by torch's SDPA, one row at a time; a transformers attention function.
    Capped scores, which SDPA lacks, are computed by plain operations.

    The computation row by row is exact (bit-equal to the unpacked forward), needs no T·T mask and,
    on a CPU, is as fast as padding.

    Raises:
        TrainerError: there are no boundaries of rows, or the attention variant is not supported.
    """
    refuse_variants(others, dropout)
    if pieces is None:
        raise TrainerError("packed attention: no row boundaries")
    spans = pieces.spans(sliding_window, chunk_of(module))
    if spans.copied:
        refuse_variants({"softcap": softcap, "s_aux": s_aux}, dropout)
        parts = (query, key, value, spans, pieces, scaling, sliding_window)
        if sum(spans.copied) <= MOST_COPIES * query.shape[2]:
            output: Any = _tree(*parts)
        else:  # too many copies of keys to keep: they are made again for the gradient
            output = checkpoint(_tree, *parts, use_reentrant=False, preserve_rng_state=False)
        return output.transpose(1, 2).contiguous(), None
    rows = zip(*(x.split(spans.queries, 2) for x in (query, key, value)), strict=True)
    if softcap is not None:
        refuse_variants({"s_aux": s_aux}, dropout)
        outputs = [_capped(q, k, v, scaling, sliding_window, softcap) for q, k, v in rows]
    elif s_aux is not None:
        outputs = [_with_sinks(q, k, v, scaling, sliding_window, s_aux) for q, k, v in rows]
    else:
        outputs = [_causal(q, k, v, pieces, scaling, sliding_window) for q, k, v in rows]
    return torch.cat(outputs, 2).transpose(1, 2).contiguous(), None


def _tree(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    spans: Spans,
    pieces: Pieces,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """Return [1, H, T, D], the attention of each span's tokens to their row. There may be keys of
    more tokens than queries if all spans say which are theirs."""
    at, copied = spans.copies, spans.copied
    keys, values = (iter(_gathered(x, at).split(copied, 2)) for x in (key, value))
    outputs, start = list[Tensor](), 0
    for places, q in zip(spans.places, query.split(spans.queries, 2), strict=True):
        if places is None:
            k, v = (x.narrow(2, start, q.shape[2]) for x in (key, value))
        else:
            k, v = next(keys), next(values)
        outputs.append(_causal(q, k, v, pieces, scaling, window))
        start += q.shape[2]
    return torch.cat(outputs, 2)


def _gathered(x: Tensor, places: Tensor) -> Tensor:
    """Return the tokens of `x` [1, K, T, D] at `places`. The gradient of a token is summed in
    float32 over its copies, in the same order each time."""
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    return wide[0].transpose(0, 1)[places].transpose(0, 1)[None].to(x.dtype)


def _causal(
    q: Tensor,  # [1, H, n, D], the last n tokens of a row
    k: Tensor,  # [1, K, N, D], the complete row, or its end
    v: Tensor,
    pieces: Pieces,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """Return the attention of a row's last tokens to the row."""
    count, length = q.shape[2], k.shape[2]
    near = None if window is None or length <= window else window
    if count == length and near is None:
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scaling, enable_gqa=True
        )
    on_cpu, outputs = q.device.type == "cpu", list[Tensor]()
    if not on_cpu:  # kernels that take a mask there take no grouped heads
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    if not on_cpu and near is None:
        lower_right = causal_lower_right(count, length)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=lower_right, scale=scaling)
    for start in range(0, count, _QUERIES):
        part = q[:, :, start : start + _QUERIES]
        end = length - count + start + part.shape[2]
        first = 0 if near is None else max(0, end - part.shape[2] - near + 1)
        seen, read = (k, v) if end - first == length else (k[:, :, first:end], v[:, :, first:end])
        mask = _mask(pieces, part.shape[2], end - first, near, like=q)
        outputs.append(
            F.scaled_dot_product_attention(
                part, seen, read, attn_mask=mask, scale=scaling, enable_gqa=on_cpu
            )
        )
    return torch.cat(outputs, 2) if len(outputs) > 1 else outputs[0]


_QUERIES = 256
"""The number of queries that one mask is for: masks of long rows would take much memory."""


def _mask(pieces: Pieces, size: int, end: int, window: int | None, *, like: Tensor) -> Tensor:
    """Return the mask [size, end] of the last `size` tokens among `end`: on a CPU, a part of one
    mask that is made once in a forward, since it depends only on distances."""
    longest, kind = pieces.longest if window is None else window, (window, like.dtype)
    if (whole := pieces.made.get(kind)) is None:
        most = min(_QUERIES, pieces.longest)
        query = torch.arange(most, device=like.device)[:, None]
        distance = query - torch.arange(-longest, most, device=like.device)
        hidden = distance < 0
        if window is not None:
            hidden |= distance >= window
        whole = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
        pieces.made[kind] = whole.masked_fill_(hidden, -torch.inf)
    start = longest - (end - size)
    part = whole[:size, start : start + end]
    if like.device.type == "cpu":
        return part
    if (made := pieces.made.get((*kind, size, end))) is None:  # GPU kernels need it contiguous
        made = pieces.made[*kind, size, end] = part.contiguous()
    return made


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


def chunk_of(module: torch.nn.Module) -> int:
    """Return the chunk size, in tokens, of a layer with chunked attention (Llama 4); 0 for any
    other layer."""
    config: Any = getattr(module, "config", None)
    kinds, layer = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    if kinds is None or layer is None or kinds[layer] != "chunked_attention":
        return 0
    return int(config.attention_chunk_size)


def refuse_variants(others: Mapping[str, Any], dropout: float) -> None:
    """Check that no variant is asked for that is not supported; else raise TrainerError."""
    odd = [name for name in ("softcap", "s_aux") if others.get(name) is not None]
    if odd or dropout:
        raise TrainerError(f"packed attention: not supported here: {odd or 'dropout'}")


AttentionInterface.register(SEGMENT_SDPA, segment_attention)
