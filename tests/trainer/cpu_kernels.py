"""The kernels that CUDA has for rows of variable length, written out for the CPU under the names,
the arguments and the checks of torch's own operations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

CALLS: list[str] = []
"""The operations that were called, in order."""


def check(q: Tensor, k: Tensor, v: Tensor, bounds: Sequence[Any]) -> None:
    """What the kernels demand of their arguments."""
    cu_q, cu_k, most_q, most_k = bounds
    assert cu_q.dtype == cu_k.dtype == torch.int32
    assert len(cu_q) == len(cu_k)
    assert (int(cu_q[-1]), int(cu_k[-1])) == (len(q), len(k))
    assert len(k) == len(v)
    assert (most_q, most_k) == (int(cu_q.diff().max()), int(cu_k.diff().max()))
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    assert q.dtype == k.dtype == v.dtype


def rows(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, window: int | None
) -> Iterator[tuple[slice, slice, Tensor]]:
    """The queries and keys of each row, and what is visible: the last query sees the last key."""
    bounds = zip(cu_q.tolist(), cu_q.tolist()[1:], cu_k.tolist(), cu_k.tolist()[1:], strict=False)
    for start, stop, first, last in bounds:
        n, m = stop - start, last - first
        age = torch.arange(n)[:, None] + (m - n) - torch.arange(m)
        yield slice(start, stop), slice(first, last), (age >= 0) & (age < (window or m + 1))


def forward(q: Tensor, k: Tensor, v: Tensor, *bounds: Any, scale: float, window: int | None):
    """Outputs [T, H, D], and the logs of the sums, [H, T]."""
    check(q, k, v, bounds)
    groups = q.shape[1] // k.shape[1]
    output, sums = torch.empty_like(q), q.new_empty(q.shape[1], len(q), dtype=wide(q))
    for own, seen, visible in rows(q, k, v, *bounds[:2], window):
        keys, values = (x[seen].to(wide(q)).repeat_interleave(groups, 1) for x in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q[own].to(wide(q)), keys) * scale
        scores = scores.masked_fill(~visible, -torch.inf)
        sums[:, own] = scores.logsumexp(-1)
        output[own] = torch.einsum("hij,jhd->ihd", scores.softmax(-1), values).to(q.dtype)
    return output, sums


def backward(
    pull: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, sums: Tensor,
    *bounds: Any, scale: float, window: int | None,
):  # fmt: skip
    """The gradients, by nothing but the output and the sums, as kernels do it."""
    check(q, k, v, bounds)
    groups = q.shape[1] // k.shape[1]
    found = [torch.zeros(x.shape, dtype=wide(q)) for x in (q, k, v)]
    pull, delta = pull.to(wide(q)), (pull.to(wide(q)) * output).sum(-1)
    for own, seen, visible in rows(q, k, v, *bounds[:2], window):
        keys, values = (x[seen].to(wide(q)).repeat_interleave(groups, 1) for x in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q[own].to(wide(q)), keys) * scale
        shares = (scores - sums[:, own, None]).exp() * visible
        to_shares = torch.einsum("ihd,jhd->hij", pull[own], values)
        to_scores = shares * (to_shares - delta[own].T[..., None]) * scale
        found[0][own] += torch.einsum("hij,jhd->ihd", to_scores, keys)
        to_keys = torch.einsum("hij,ihd->jhd", to_scores, q[own].to(wide(q)))
        to_values = torch.einsum("hij,ihd->jhd", shares, pull[own])
        for total, each in zip(found[1:], (to_keys, to_values), strict=True):
            total[seen] += each.unflatten(1, (-1, groups)).sum(2)
    return tuple(x.to(q.dtype) for x in found)


def wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def span(is_causal: bool, left: int, right: int) -> int | None:
    assert right == 0
    assert is_causal == (left == -1)
    return None if left == -1 else left + 1


def flash(
    q, k, v, cu_q, cu_k, most_q, most_k, dropout, is_causal, debug, *,
    scale=None, window_size_left=None, window_size_right=None, **others,
):  # fmt: skip
    CALLS.append("flash")
    assert dropout == 0
    assert not debug
    assert q.shape[1] % k.shape[1] == 0
    assert q.shape[-1] % 8 == 0
    window = span(is_causal, window_size_left, window_size_right)
    found = forward(q, k, v, cu_q, cu_k, most_q, most_k, scale=scale, window=window)
    state = torch.full((2,), 7, dtype=torch.uint64)
    return (*found, state, torch.empty(0), torch.empty(0))


def flash_backward(
    pull, q, k, v, output, sums, cu_q, cu_k, most_q, most_k, dropout, is_causal, state, unused, *,
    scale=None, window_size_left=None, window_size_right=None,
):  # fmt: skip
    CALLS.append("flash backward")
    assert state.tolist() == [7, 7]
    window = span(is_causal, window_size_left, window_size_right)
    rest = (cu_q, cu_k, most_q, most_k)
    return backward(pull, q, k, v, output, sums, *rest, scale=scale, window=window)


def padded(sums: Tensor, cu_q: Tensor, most: int) -> Tensor:
    """The logs of sums in the layout of the memory-efficient kernel, [rows, H, 32 n]."""
    whole = sums.new_full((len(cu_q) - 1, len(sums), -(-most // 32) * 32), torch.nan)
    for row, (a, b) in zip(whole, itertools.pairwise(cu_q), strict=True):
        row[:, : b - a] = sums[:, a:b]
    return whole


def efficient(
    q, k, v, bias, cu_q, cu_k, most_q, most_k, dropout, mask, sums_too=False, *,
    scale=None, seqlen_k=None, window_size=None,
):  # fmt: skip
    CALLS.append("efficient")
    assert (bias, seqlen_k, dropout, mask, sums_too) == (None, None, 0, 2, True)
    assert q.shape[0] == 1
    assert q.shape[2] == k.shape[2] == v.shape[2], "heads are not grouped"
    parts = (q[0], k[0], v[0], cu_q, cu_k, most_q, most_k)
    output, sums = forward(*parts, scale=scale, window=window_size)
    seed = torch.tensor(5)
    return output[None], padded(sums, cu_q, most_q), seed, seed + 1, most_q, most_k


def efficient_backward(
    pull, q, k, v, bias, output, cu_q, cu_k, most_q, most_k, sums, dropout, seed, offset, mask,
    to_bias, *, scale=None, num_splits_key=None, window_size=None, shared_storage_dqdkdv=False,
):  # fmt: skip
    CALLS.append("efficient backward")
    assert (int(seed), int(offset), mask, to_bias) == (5, 6, 2, False)
    flat = torch.cat([row[:, :n] for row, n in zip(sums, cu_q.diff().tolist(), strict=True)], 1)
    parts = (pull[0], q[0], k[0], v[0], output[0], flat, cu_q, cu_k, most_q, most_k)
    found = backward(*parts, scale=scale, window=window_size)
    return (*(x[None] for x in found), torch.empty(0))


@contextmanager
def on_cpu() -> Iterator[list[str]]:
    """Have the kernels on the CPU while the context is open; the list of what is called."""
    library = torch.library.Library("aten", "IMPL", "CPU")
    library.impl("_flash_attention_forward", flash)
    library.impl("_flash_attention_backward", flash_backward)
    library.impl("_efficient_attention_forward", efficient)
    library.impl("_efficient_attention_backward", efficient_backward)
    CALLS.clear()
    try:
        yield CALLS
    finally:
        library._destroy()
