"""The chunked head: the same numbers, and never the logits of a whole micro-batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from trainer_samples import make_row, save_tiny_model
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTJConfig,
    GPTJForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
)

from agentgym_rl.algo import PackedRows, pack_rows
from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import TrainerError
from agentgym_rl.trainer import Policy
from agentgym_rl.trainer.policy import _ChunkedScores, _Options, default_chunk, head_dtype
from agentgym_rl.weights import wide_linear

CHUNK = 8


def packed(lengths: tuple[int, ...] = (9, 17, 30)) -> PackedRows:
    rng = np.random.default_rng(0)
    return pack_rows([make_row(rng, length) for length in lengths])


def policy(model_dir, world, chunk: int, dtype: torch.dtype = torch.float64) -> Policy:
    trainer = TrainerConfig(head_chunk_tokens=chunk)
    return Policy.load(model_dir, world, master_dtype=dtype, trainer=trainer)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_chunks_do_not_matter(tmp_path, world, tied):
    folder = save_tiny_model(tmp_path, tied=tied)
    rows, found = packed(), []
    pull = torch.linspace(-1, 1, len(rows.targets), dtype=torch.float64)
    for chunk in (0, 1, CHUNK, 1000):
        model = policy(folder, world, chunk)
        logprobs, entropies, _ = model.scores(rows)
        ((pull * logprobs).sum() + (pull.flip(0) * entropies).sum()).backward()
        grads = [p.grad.flatten() for p in model.model.parameters()]
        found.append((logprobs, entropies, torch.cat(grads), model.logprobs(rows)))
    for parts in found[1:]:
        for mine, plain in zip(parts, found[0], strict=True):
            torch.testing.assert_close(mine, plain, rtol=0, atol=1e-9)
    assert found[0][2].abs().max() > 0.1


class LargestOf(TorchDispatchMode):
    """The largest tensor made that has a dimension of the vocabulary's size."""

    def __init__(self, vocab: int):
        super().__init__()
        self.vocab, self.numel = vocab, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor) and self.vocab in tensor.shape:
                self.numel = max(self.numel, tensor.numel())
        return result


def test_the_logits_of_a_micro_batch_never_exist(tmp_path, world):
    """Neither forward nor backward; a matrix of the head's own size (hidden 32) has to."""
    vocab = 1000
    folder = save_tiny_model(tmp_path, vocab=vocab)
    rows = packed((60, 90))
    assert len(rows.targets) > 64
    largest = {}
    for chunk in (0, CHUNK):
        model = policy(folder, world, chunk)
        with LargestOf(vocab) as seen:
            model.logprobs(rows).sum().backward()
        largest[chunk] = seen.numel
    assert largest[0] >= len(rows.targets) * vocab
    assert largest[CHUNK] <= 32 * vocab


def test_a_head_in_half_precision_still_sums_in_float32(tmp_path, world):
    model = policy(save_tiny_model(tmp_path), world, CHUNK, torch.bfloat16)
    exact = policy(tmp_path, world, 0, torch.float32)
    found = model.scores(packed())[:2]
    assert {x.dtype for x in found} == {torch.float32}
    torch.testing.assert_close(found, exact.scores(packed())[:2], rtol=0, atol=0.2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_in_the_compute_dtype_round_factors_and_nothing_else(dtype):
    """Against float64: sums, log-softmax and the weights' gradient are in float32, in any chunks;
    for bfloat16, exactly what float64 says of rounded factors."""
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(60, 64, generator=draw)
    weight = torch.randn(500, 64, generator=draw) / 2
    targets = torch.randint(0, 500, (60, 1), generator=draw)
    pull = torch.randn(1, 60, 2, generator=draw).double()

    def found(dtype: torch.dtype, rounded: bool = False, chunk: int = 16) -> list[torch.Tensor]:
        leaves = [x.to(torch.promote_types(dtype, torch.float32)) for x in (hidden, weight)]
        leaves = [(x.bfloat16().to(x.dtype) if rounded else x).requires_grad_() for x in leaves]
        options = _Options(chunk, allowed=None, entropies=True, keeps=False, dtype=dtype)
        scores = _ChunkedScores.apply(*leaves, targets, torch.ones(60), options)
        assert scores.dtype == leaves[0].dtype
        gradients = torch.autograd.grad(scores, leaves, pull.to(scores.dtype))
        assert {x.dtype for x in gradients} == {scores.dtype}
        return [x.detach().double() for x in (scores, *gradients)]

    def gaps(mine: list[torch.Tensor], right: list[torch.Tensor]) -> list[float]:
        pairs = zip(mine, right, strict=True)
        return [float((a - b).norm() / b.norm()) for a, b in pairs]

    half = dtype == torch.bfloat16
    mine = found(dtype)
    scores, *gradients = gaps(mine, found(torch.float64, rounded=half))
    assert scores < 1e-6  # the same scores as an engine's whose sums are in float32
    assert max(gradients) < (4e-3 if half else 1e-6)
    assert max(gaps(mine, found(torch.float64))) < (1e-2 if half else 1e-6)
    assert max(gaps(mine, found(dtype, chunk=60))) < 1e-6
    low = torch.nn.functional.linear(hidden.to(dtype), weight.to(dtype)).float()
    wide = wide_linear(weight.to(dtype), hidden)
    assert wide.dtype == torch.float32
    assert ((low - wide).abs().max() > 0.01) == half  # what a head that rounds logits loses


def test_a_gpu_multiplies_its_head_in_the_compute_dtype(tmp_path, world):
    gpu, cpu, own = torch.device("cuda"), torch.device("cpu"), torch.float32
    assert head_dtype(gpu, own, half=True) == torch.bfloat16
    assert {head_dtype(gpu, own, half=False), head_dtype(cpu, own, half=True)} == {own}
    folder = save_tiny_model(tmp_path, vocab=1000)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        model = policy(folder, world, CHUNK, torch.float32)
        assert model._head.dtype == torch.float32
        model._head.dtype = dtype
        logprobs = model.logprobs(packed())
        logprobs.sum().backward()
        grads = [p.grad.flatten() for p in model.model.parameters()]
        found.append((logprobs.detach(), torch.cat(grads)))
    for right, mine in zip(*found, strict=True):
        assert 1e-5 < (mine - right).norm() / right.norm() < 0.01


def test_chunks_on_a_gpu_are_as_large_as_its_memory_allows():
    sizes = [default_chunk(151_936, 4096, gigabytes << 30) for gigabytes in (0, 24, 80, 140)]
    assert sizes == [64, 331, 1104, 1932]
    assert default_chunk(640, 4096, 80 << 30) == 0


SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 48,
    "initializer_range": 0.3,
}


def test_a_head_divides_logits_as_granite_does(world):
    config = GraniteConfig(**SIZES, logits_scaling=4.0)
    torch.manual_seed(0)
    model = GraniteForCausalLM(config)
    found = []
    for chunk in (0, CHUNK):
        its = Policy(model, world, trainer=TrainerConfig(head_chunk_tokens=chunk))
        assert (its._head is not None) == bool(chunk)
        found.append((*its.scores(packed())[:2], its.likeliest(packed(), count=5, vocab_size=40)))
    for right, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, right)


def test_a_model_that_changes_its_logits_is_refused(world):
    """Gemma 2 caps them, and log-probs are no logits."""
    config = Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=1.0)
    trainer = TrainerConfig(head_chunk_tokens=CHUNK)
    with pytest.raises(TrainerError, match="Gemma2ForCausalLM does more to its logits"):
        Policy(Gemma2ForCausalLM(config), world, trainer=trainer)


def test_a_head_with_a_bias_is_refused(world):
    config = GPTJConfig(vocab_size=40, n_embd=32, n_layer=1, n_head=4, rotary_dim=8)
    trainer = TrainerConfig(head_chunk_tokens=CHUNK)
    with pytest.raises(TrainerError, match="without a bias"):
        Policy(GPTJForCausalLM(config), world, trainer=trainer)
