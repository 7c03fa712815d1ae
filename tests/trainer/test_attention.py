"""The attention functions of packed rows against plain formulas, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from agentgym_rl.core import TrainerError
from agentgym_rl.trainer import attention
from agentgym_rl.trainer.attention import segment_attention
from agentgym_rl.trainer.spans import Pieces

LENGTHS = (7, 1, 30, 12)
HEADS, KV_HEADS, SIZE = 4, 2, 8


def pieces() -> Pieces:
    return Pieces(LENGTHS, None, torch.device("cpu"))


def drawn(count: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(1, count, sum(LENGTHS), SIZE, generator=draw, dtype=torch.float64)


def by_formula(q, k, v, *, window=None, softcap=None, sinks=None) -> Tensor:
    """Every token's mix of the row's tokens before it, written out for each row and head."""
    out, start = [], 0
    for length in LENGTHS:
        rows = slice(start, start := start + length)
        heads = []
        for head in range(HEADS):
            near, mine = head * KV_HEADS // HEADS, q[0, head, rows]
            scores = mine @ k[0, near, rows].T / SIZE**0.5
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            age = torch.arange(length)[:, None] - torch.arange(length)
            allowed = (age >= 0) & (age < (window or length))
            weights = scores.exp() * allowed
            total = weights.sum(-1, keepdim=True)
            if sinks is not None:
                total = total + sinks[head].exp()
            heads.append(weights / total @ v[0, near, rows])
        out.append(torch.stack(heads, 1))
    return torch.cat(out)[None]


@pytest.mark.parametrize("queries", [4, 256])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("variant", ["plain", "softcap", "sinks"])
def test_rows_windows_caps_and_sinks_are_those_of_the_formula(
    window, variant, queries, monkeypatch
):
    monkeypatch.setattr(attention, "_QUERIES", queries)
    q, k, v = drawn(HEADS, 0), drawn(KV_HEADS, 1), drawn(KV_HEADS, 2)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
    leaves = [it.requires_grad_() for it in (q, k, v, sinks)]
    ours: dict = {"softcap": 4.0 if variant == "softcap" else None}
    ours["s_aux"] = sinks if variant == "sinks" else None
    theirs = {"softcap": ours["softcap"], "sinks": ours["s_aux"]}
    found, _ = segment_attention(
        torch.nn.Module(), q, k, v, None, sliding_window=window, pieces=pieces(), **ours
    )
    expected = by_formula(q, k, v, window=window, **theirs)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    used = leaves if variant == "sinks" else leaves[:3]
    weights = drawn(HEADS, 3).transpose(1, 2)
    mine, right = (torch.autograd.grad((it * weights).sum(), used) for it in (found, expected))
    for one, other in zip(mine, right, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_caps_and_sinks_together_are_refused():
    q, k, v = drawn(HEADS, 0), drawn(KV_HEADS, 1), drawn(KV_HEADS, 2)
    with pytest.raises(TrainerError, match="not supported here"):
        segment_attention(
            torch.nn.Module(), q, k, v, None,
            pieces=pieces(), softcap=4.0, s_aux=torch.zeros(HEADS),
        )  # fmt: skip


def test_a_window_keeps_no_more_for_longer_rows():
    """For 512 to 8,192 own tokens: a mask of all pairs would take 4 bytes more a token."""
    each = []
    for length in (512, 2048, 8192):
        whole, kept = Pieces((length,), None, torch.device("cpu")), {}
        inputs = [torch.randn(1, heads, length, SIZE, requires_grad=True) for heads in (4, 2, 2)]

        def note(tensor: Tensor, kept: dict = kept) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        with saved_tensors_hooks(note, lambda tensor: tensor):
            segment_attention(torch.nn.Module(), *inputs, None, sliding_window=64, pieces=whole)
        each.append(sum(it.nbytes() for it in kept.values()) / length)
    assert each[2] <= each[1] <= each[0] < 1500
