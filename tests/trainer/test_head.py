"""The chunked head: the same numbers, and never the logits of a whole micro-batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from trainer_samples import make_row, save_tiny_model
from transformers import GPTJConfig, GPTJForCausalLM, GraniteConfig, GraniteForCausalLM

from agentgym_rl.algo import PackedRows, pack_rows
from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import TrainerError
from agentgym_rl.trainer import Policy

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


def test_a_model_that_changes_its_logits_is_refused(world):
    """Granite divides them, which log-probs must not be."""
    config = GraniteConfig(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=48,
        initializer_range=0.3,
        logits_scaling=4.0,
    )
    trainer = TrainerConfig(head_chunk_tokens=CHUNK)
    with pytest.raises(TrainerError, match="GraniteForCausalLM does more to its logits"):
        Policy(GraniteForCausalLM(config), world, trainer=trainer)


def test_a_head_with_a_bias_is_refused(world):
    config = GPTJConfig(vocab_size=40, n_embd=32, n_layer=1, n_head=4, rotary_dim=8)
    trainer = TrainerConfig(head_chunk_tokens=CHUNK)
    with pytest.raises(TrainerError, match="without a bias"):
        Policy(GPTJForCausalLM(config), world, trainer=trainer)
