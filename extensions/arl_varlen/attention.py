"""Attention over all packed rows in one call of a kernel for rows of variable length, on GPUs:
torch's flash attention in bfloat16, and its memory-efficient attention in float32.

Neither has a mask, whose memory would grow with the square of a row's length, and the host does not
wait for the device. Experimental: flash attention over separate rows has run on one H200, the rest
not yet; a trial of their gradients (kind.py) decides whether a model uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import AttentionInterface

from agentgym_rl.core import TrainerError
from agentgym_rl.trainer import Pieces, Spans, chunk_of, refuse_variants

VARLEN = "seg_varlen"
"""The name under which transformers models find `varlen_attention` in bfloat16."""
EFFICIENT = "seg_efficient"
"""The name under which they find it in float32."""
_aten = torch.ops.aten
_LOWER_RIGHT = 2
"""The memory-efficient kernel's number of causal attention in which the last query has all keys."""


class Bounds(NamedTuple):
    """The boundaries of spans for kernels that compute all of them at once."""

    queries: Tensor
    """The first query of each span, and the number of all, [S + 1] int32."""
    keys: Tensor
    most_queries: int
    most_keys: int
    places: Tensor | None
    """The places of the keys of all spans, [N] int64; None: the keys are the queries."""

    @classmethod
    def of(cls, pieces: Pieces, window: int | None, chunk: int) -> Bounds:
        """Return the boundaries of a layer's spans (`Pieces.spans`), made once in a forward, for
        all layers, without waiting for the device."""
        if (found := pieces.made.get((cls, window, chunk))) is None:
            found = pieces.made[cls, window, chunk] = cls._made(pieces.spans(window, chunk))
        return found

    @classmethod
    def _made(cls, spans: Spans) -> Bounds:
        def there(parts: Sequence[npt.NDArray[np.int64]]) -> Tensor:
            whole = torch.as_tensor(np.concatenate(parts))
            return whole.to(spans.device, non_blocking=True)

        firsts = np.cumsum([0, *spans.queries])
        found = [
            np.arange(first, first + count) if places is None else places
            for first, count, places in zip(firsts[:-1], spans.queries, spans.places, strict=True)
        ]
        queries, keys = (there([np.cumsum([0, *it])]).int() for it in (spans.queries, spans.keys))
        places = there(found) if spans.copied else None
        return cls(queries, keys, max(spans.queries), max(spans.keys), places)


def varlen_attention(
    dtype: torch.dtype,
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
    s_aux: Tensor | None = None,  # [H], the logits of attention sinks
    **others: Any,
) -> tuple[Tensor, None]:
    """Return [1, T, H, D], computed in `dtype`; with it, a transformers attention function.

    Raises:
        TrainerError: there are no boundaries of rows, or the attention variant is not supported.
    """
    kind = _Flash if dtype == torch.bfloat16 else _Efficient
    refuse_variants({**others, "s_aux": None if kind is _Flash else s_aux}, dropout)
    if pieces is None:
        raise TrainerError("packed attention: no row boundaries")
    bounds = Bounds.of(pieces, sliding_window, chunk_of(module))
    q, k, v = (x[0].transpose(0, 1).to(dtype) for x in (query, key, value))
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    left = None if sliding_window is None else sliding_window - 1
    compute: Any = _AllRows.apply
    return compute(q, k, v, s_aux, kind(bounds, scale, left))[None].to(query.dtype), None


class _AllRows(torch.autograd.Function):
    """The attention [T, H, D] of all rows, with its gradient by the kernel's own backward, which
    needs only inputs, output and the log of each softmax's sum.

    Keys and values that several spans read are copied for a kernel, and not kept. A sink has a
    score in each softmax, and no value: the kernel's backward is right for it too if it gets the
    output and the sum with the sink.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, kernel: _Flash
    ) -> Tensor:
        output, sums, *state = kernel.forward(query, *kernel.copied(key, value))
        if sinks is not None:
            total = torch.logaddexp(sums, sinks.to(sums.dtype)[:, None])
            output = (output * (sums - total).exp().T[..., None]).to(output.dtype)
            sums = total
        ctx.save_for_backward(query, key, value, sinks, output, sums, *state)
        ctx.kernel = kernel
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sinks, output, sums, *state = ctx.saved_tensors
        (pull,), kernel, to_sinks = gradients, ctx.kernel, None
        if sinks is not None:
            each = (pull.to(sums.dtype) * output).sum(-1).T  # [H, T]
            to_sinks = -((sinks.to(sums.dtype)[:, None] - sums).exp() * each).sum(1).to(sinks.dtype)
        inputs = (query, *kernel.copied(key, value))
        to_query, *others = kernel.backward(pull.contiguous(), *inputs, output, sums, state)
        to_key, to_value = (kernel.summed(x, len(key)) for x in others)
        return to_query, to_key, to_value, to_sinks, None


class _Flash:
    """Flash attention, torch's operation below `varlen_attn`, whose own backward has no sinks."""

    def __init__(self, bounds: Bounds, scale: float, left: int | None) -> None:
        self._bounds, self._left, self._scale = bounds, left, scale
        """A query attends to the `left` keys before its own; None: to all of them."""
        self._rows = bounds[:4]

    def copied(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return what is at the places of all keys."""
        places = self._bounds.places
        return tensors if places is None else tuple(it[places] for it in tensors)

    def summed(self, gradient: Tensor, count: int) -> Tensor:
        """Return the gradient of `count` tokens from that of the copies, summed in float32 or
        better, in the same order each time."""
        if self._bounds.places is None:
            return gradient
        wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        total = wide.new_zeros(count, *wide.shape[1:])
        return total.index_put_((self._bounds.places,), wide, accumulate=True).to(gradient.dtype)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Return the output, the log of each softmax's sum, [H, T], and what `backward` needs."""
        inputs = (query, key, value, *self._rows, 0.0, self._left is None, False)
        return _aten._flash_attention_forward(*inputs, **self._options)[:3]

    def backward(self, pull: Tensor, *saved: Any) -> tuple[Tensor, ...]:
        """Return the gradients of query, keys and values."""
        *tensors, (state,) = saved
        unused = torch.empty(0, device=pull.device)
        rest = (*self._rows, 0.0, self._left is None, state, unused)
        return _aten._flash_attention_backward(pull, *tensors, *rest, **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        left = -1 if self._left is None else self._left
        return {"scale": self._scale, "window_size_left": left, "window_size_right": 0}


class _Efficient(_Flash):
    """Memory-efficient attention, whose heads are not grouped: keys and values are repeated. Its
    own backward, by torch's autograd, would leave out the window."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Return what flash attention does; the logs are [S, H, most queries]."""
        inputs = (x[None] for x in (query, *self._repeated(query, key, value)))
        rest = (None, *self._rows, 0.0, _LOWER_RIGHT, True)
        output, *rest = _aten._efficient_attention_forward(*inputs, *rest, **self._options)
        return (output[0], *rest[:3])

    def backward(self, pull: Tensor, *saved: Any) -> tuple[Tensor, ...]:
        """Return the gradients of query, keys and values."""
        query, key, value, output, sums, state = saved
        inputs = [x[None] for x in (pull, query, *self._repeated(query, key, value))]
        rest = (None, output[None], *self._rows, sums, 0.0, *state, _LOWER_RIGHT, False)
        found = _aten._efficient_attention_backward(*inputs, *rest, **self._options)[:3]
        to_query, to_key, to_value = (x[0] for x in found)
        return to_query, *(x.unflatten(1, (key.shape[1], -1)).sum(2) for x in (to_key, to_value))

    def _repeated(self, query: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        groups = query.shape[1] // tensors[0].shape[1]
        return tuple(it.repeat_interleave(groups, 1) for it in tensors)

    @property
    def _options(self) -> dict[str, Any]:
        window = None if self._left is None else self._left + 1
        return {"scale": self._scale, "window_size": window}


AttentionInterface.register(VARLEN, partial(varlen_attention, torch.bfloat16))
AttentionInterface.register(EFFICIENT, partial(varlen_attention, torch.float32))
