"""Attention over all rows in one call, with the kernels of CUDA written out for the CPU: the same
numbers as row by row, in float64, and memory that grows with the tokens alone."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import cpu_kernels
import numpy as np
import pytest
import torch
from arl_varlen.attention import (
    EFFICIENT,
    VARLEN,
    Bounds,
    _AllRows,
    _Efficient,
    _Flash,
    varlen_attention,
)
from arl_varlen.kind import ATTENTION, VarlenAttention
from test_prefixes import SAMPLES, gradients
from torch.autograd.graph import saved_tensors_hooks
from transformers import AttentionInterface

from agentgym_rl.algo import PackedRows, pack_rows
from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import ConfigError, TrainerError, extensions
from agentgym_rl.trainer import Policy, packing_trial
from agentgym_rl.trainer.attention import SEGMENT_SDPA, segment_attention
from agentgym_rl.trainer.packing_trial import ROW_BY_ROW, choose_attention, pack_tokens
from agentgym_rl.trainer.spans import Pieces
from agentgym_rl.weights import set_own_attention
from tests.kit.cases import cases

H, K, D = 4, 2, 8
KINDS = {"flash": _Flash, "efficient": _Efficient}


@pytest.fixture
def called():
    with cpu_kernels.on_cpu() as calls:
        yield calls


def rows_of(shared: int, own: int, members: int) -> PackedRows:
    rng = np.random.default_rng(0)
    head = rng.integers(0, 90, shared).tolist()
    rows = [(*head, *rng.integers(0, 90, own + n).tolist()) for n in range(members)]
    return pack_tokens([*rows, (7,), tuple(range(30))], share=shared > 0)


def pieces_of(packed: PackedRows, device: str = "cpu") -> Pieces:
    return Pieces(packed.lengths, packed.branches, torch.device(device))


def drawn(count: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [
        torch.randn(1, heads, count, D, generator=draw, dtype=torch.float64).requires_grad_()
        for heads in (H, K, K)
    ]


@pytest.mark.parametrize("chunk", [0, 12])
@pytest.mark.parametrize("window", [None, 1, 5, 21])
@pytest.mark.parametrize("shared", [0, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_one_call_says_what_rows_say(called, kind, shared, window, chunk):
    packed = rows_of(shared, 9, 3)
    bounds = Bounds.of(pieces_of(packed), window, chunk)
    inputs = drawn(packed.tokens.shape[1])
    layer = torch.nn.Module()
    layer.config = SimpleNamespace(layer_types=["chunked_attention"], attention_chunk_size=chunk)
    layer.layer_idx = 0
    right, _ = segment_attention(
        layer, *inputs, None, pieces=pieces_of(packed), sliding_window=window
    )
    left = None if window is None else window - 1
    flat = (x[0].transpose(0, 1) for x in inputs)
    found = _AllRows.apply(*flat, None, KINDS[kind](bounds, D**-0.5, left))[None]
    pull = torch.cos(torch.arange(right.numel(), dtype=torch.float64)).view_as(right)
    torch.testing.assert_close(found, right, rtol=0, atol=1e-12)
    mine, others = (torch.autograd.grad(x, inputs, pull) for x in (found, right))
    torch.testing.assert_close(mine, others, rtol=0, atol=1e-11)
    assert called == [kind, f"{kind} backward"]


@pytest.mark.parametrize("window", [None, 5])
def test_sinks_need_no_more_than_the_output_and_the_sums(called, window):
    packed = rows_of(0, 9, 3)
    inputs, sinks = drawn(packed.tokens.shape[1]), torch.tensor([0.5, -1.0, 2.0, 0.0]).double()
    leaves = [*inputs, sinks.requires_grad_()]
    options = {"pieces": pieces_of(packed), "sliding_window": window, "s_aux": sinks}
    right, _ = segment_attention(torch.nn.Module(), *inputs, None, **options)
    left = None if window is None else window - 1
    bounds = Bounds.of(pieces_of(packed), window, 0)
    flat = (x[0].transpose(0, 1) for x in inputs)
    found = _AllRows.apply(*flat, sinks, _Flash(bounds, D**-0.5, left))[None]
    torch.testing.assert_close(found, right, rtol=0, atol=1e-12)
    pull = torch.cos(torch.arange(right.numel(), dtype=torch.float64)).view_as(right)
    mine, others = (torch.autograd.grad(x, leaves, pull) for x in (found, right))
    torch.testing.assert_close(mine, others, rtol=0, atol=1e-11)
    with pytest.raises(TrainerError, match="s_aux"):
        varlen_attention(torch.float32, torch.nn.Module(), *inputs, None, **options)


@cases("name", SAMPLES)
def test_a_model_learns_the_same_from_all_rows_at_once(tiny_model, world, called, name):
    policy = Policy.load(tiny_model, world, master_dtype=torch.float64)
    called.clear()
    rows = [row for row in SAMPLES[name]() if row.num_trained]
    alone = gradients(policy, policy.logprobs, [pack_rows([row]) for row in rows])
    try:
        AttentionInterface.register(SEGMENT_SDPA, partial(varlen_attention, torch.float64))
        found = gradients(policy, policy.logprobs, [pack_rows(rows, share=True)])
        assert set(called) == {"efficient", "efficient backward"}
        assert called.count("efficient") == policy.model.config.num_hidden_layers
        AttentionInterface.register(SEGMENT_SDPA, AttentionInterface()[VARLEN])
        half = gradients(policy, policy.logprobs, [pack_rows(rows, share=True)])
    finally:
        AttentionInterface.register(SEGMENT_SDPA, segment_attention)
    torch.testing.assert_close(found, alone, rtol=0, atol=2e-6)
    assert (half - alone).norm() < 0.05 * alone.norm()
    assert "flash backward" in called


def kept_bytes(kind: str, packed: PackedRows, *, heads: tuple[int, int, int]) -> int:
    """What one layer keeps for its gradient, on a device without any memory."""
    h, k, d = heads
    dtype, kept = torch.bfloat16 if kind == "flash" else torch.float32, {}
    count = packed.tokens.shape[1]
    shapes = ((1, h, count, d), (1, k, count, d), (1, k, count, d))
    inputs = [torch.empty(s, dtype=dtype, device="meta", requires_grad=True) for s in shapes]

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[id(tensor.untyped_storage())] = tensor.untyped_storage()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        output, _ = varlen_attention(
            dtype, torch.nn.Module(), *inputs, None, pieces=pieces_of(packed, "meta")
        )
    assert output.shape == (1, count, h, d)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("kind", KINDS)
def test_memory_a_token_is_constant_in_length(kind):
    """Six rows behind as long a beginning keep what queries, keys, values and outputs take."""
    heads = (8, 2, 64)
    size = {"flash": 2, "efficient": 4}[kind]
    for own in (512, 2048, 8192):
        packed = rows_of(own, own, 6)
        count = packed.tokens.shape[1]
        each = kept_bytes(kind, packed, heads=heads) / count / heads[0]
        assert 2.5 * 64 * size <= each <= 2.5 * 64 * size + 12, own


class Wrong(_Flash):
    """A kernel whose gradient ignores the window, as torch's own of the memory-efficient one."""

    def backward(self, *args):
        self._left = None
        return super().backward(*args)


def test_a_trial_of_gradients_decides(tiny_model, monkeypatch, called, caplog):
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    for name in (VARLEN, EFFICIENT):
        assert ATTENTION.wrong(name, model) == ""
    monkeypatch.setattr("arl_varlen.attention._Flash", Wrong)
    assert "window of 60" in ATTENTION.wrong(VARLEN, model)
    monkeypatch.setattr("arl_varlen.attention._Flash.forward", None)
    assert "TypeError" in ATTENTION.wrong(VARLEN, model)


@pytest.mark.parametrize(("half", "name"), [(True, VARLEN), (False, EFFICIENT)])
def test_a_gpu_gets_all_rows_at_once(tiny_model, monkeypatch, called, half, name):
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    own = set_own_attention(model)
    monkeypatch.setattr(packing_trial, "_on_gpu", lambda model: True)
    for wanted, right in (("auto", name), ("varlen", name), ("rows", SEGMENT_SDPA)):
        found = choose_attention(model, own, wanted=wanted, longest=64, half=half)
        assert found == (right, True), wanted
    monkeypatch.setattr(VarlenAttention, "wrong", lambda *_: "gradients differ")
    found = choose_attention(model, own, wanted="auto", longest=64, half=half)
    assert found == (SEGMENT_SDPA, True)
    with pytest.raises(TrainerError, match="gradients differ"):
        choose_attention(model, own, wanted="varlen", longest=64, half=half)
    assert ROW_BY_ROW not in found


def test_without_the_package_rows_are_computed_one_by_one(tiny_model, monkeypatch):
    import transformers

    find = extensions.find_spec
    monkeypatch.setattr(extensions, "find_spec", lambda n: None if n == "arl_varlen" else find(n))
    extensions.forget_entry_points()
    try:
        with pytest.raises(ConfigError, match="'varlen' is a type of the extension arl_varlen"):
            TrainerConfig(attention="varlen")
        monkeypatch.setattr(packing_trial, "_on_gpu", lambda model: True)
        model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model).eval()
        own = set_own_attention(model)
        found = choose_attention(model, own, wanted="auto", longest=64, half=True)
        assert found == (SEGMENT_SDPA, True)
    finally:
        extensions.forget_entry_points()
