"""Rows with a common beginning, computed as a tree: losses and gradients are those of the rows
alone, and less is computed."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as T
from arl_lora.keys import LoraConfig
from arl_objectives.critic import ValueModel
from rank_child import TRAINER, make_stepper, train_tree
from torch.distributed.tensor import DTensor
from trainer_samples import (
    VOCAB,
    make_row,
    make_shards,
    make_tree,
    replaced,
    reproducible,
    saved_bytes,
    wide_norm,
)
from transformers.models.qwen3 import modeling_qwen3

from agentgym_rl.algo import PackedRows, micro_batches, pack_rows
from agentgym_rl.config import TrainerConfig, load_config
from agentgym_rl.core import Row
from agentgym_rl.trainer import Phases, Policy, ShardTokens, attention, frozen_pass, packing_trial
from agentgym_rl.trainer.attention import SEGMENT_SDPA
from agentgym_rl.trainer.packing_trial import ROW_BY_ROW, choose_attention
from agentgym_rl.trainer.usage import FlopCount
from agentgym_rl.weights import set_own_attention
from tests.kit.cases import cases

RNG = np.random.default_rng(5)
ROOMY = TRAINER.model_copy(update={"max_tokens_per_microbatch": 150})
HEAD = RNG.integers(0, VOCAB, 20)
"""A prompt."""
START = RNG.bit_generator.state


def row(*parts: Any, temperature: float = 1.0, trained: int | None = None) -> Row:
    """A row of tokens, lists of them, or numbers of random ones; its last `trained` train (None:
    all after the prompt)."""
    given = [RNG.integers(0, VOCAB, p) if isinstance(p, int) else np.asarray(p) for p in parts]
    tokens = np.concatenate(given).astype(np.int32)
    like = make_row(RNG, len(tokens), temperature=temperature)
    size = max(len(tokens) - len(HEAD), 0) if trained is None else trained
    mask = np.arange(len(tokens)) >= len(tokens) - size
    heat = np.where(mask, temperature, 0).astype(np.float32)
    return replaced(like, tokens=tokens, loss_mask=mask, temperatures=heat)


def conversation(turns: int) -> list[Row]:
    """A row for each turn, as of an agent that asks anew with its whole history; each trains its
    own reply."""
    whole = RNG.integers(0, VOCAB, 20 + 8 * turns)
    return [row(whole[: 28 + 8 * turn], trained=5) for turn in range(turns)]


def branching() -> list[Row]:
    """Branches of branches, which end at different depths."""
    first, second = RNG.integers(0, VOCAB, 17), RNG.integers(0, VOCAB, 5)
    one, two = [HEAD, first, second], [HEAD, first, 9]
    rows = [row(*one, 3), row(*one, 6), row(*two), row(HEAD, first, [7]), row(HEAD, 30)]
    return [*rows, row(HEAD, first[:1]), row(HEAD, rows[-1].tokens[20:40], 11), row(33)]


def heated(like: Row, *temperatures: float) -> list[Row]:
    heats = [np.where(like.loss_mask, heat, 0).astype(np.float32) for heat in temperatures]
    return [replaced(like, temperatures=heat) for heat in heats]


def partly(like: Row, *each: int) -> list[Row]:
    masks = [like.loss_mask & (np.arange(len(like)) % step == 0) for step in each]
    return [replaced(like, loss_mask=mask) for mask in masks]


SAMPLES: dict[str, Callable[[], list[Row]]] = {
    "a group": lambda: [row(HEAD, n) for n in (6, 9, 3, 1)],
    "turns of one conversation": lambda: conversation(6),
    "branches": branching,
    "identical rows": lambda: [r := row(HEAD, 12), r, replace(r), r],
    "rows of one token": lambda: [row(1, trained=0), row(HEAD, 4), row(1, trained=0), row(HEAD, 1)],
    "temperatures": lambda: [*heated(row(HEAD, 8), 0.7, 1, 0.7), row(HEAD, 5, temperature=1.3)],
    "tokens that train in one row alone": lambda: partly(row(HEAD, 12), 2, 3, 1),
    "nothing in common": lambda: [row(n) for n in (21, 34, 22)],
}


@pytest.fixture(autouse=True)
def same_rows() -> None:
    """The same random rows for a test, whichever tests come before it."""
    RNG.bit_generator.state = START


@pytest.fixture(autouse=True)
def wide_norms(monkeypatch) -> None:
    monkeypatch.setattr(modeling_qwen3.Qwen3RMSNorm, "forward", wide_norm)


def gradients(
    model: Any, say: Callable[[PackedRows], torch.Tensor], packs: Sequence[PackedRows]
) -> torch.Tensor:
    """The gradient by all weights of a weighted mean of what is said of the packs' trained tokens,
    with the mean at its end."""
    model.model.zero_grad()
    draw = torch.Generator().manual_seed(1)
    said = torch.cat([say(packed) for packed in packs])
    loss = (said * torch.randn(said.shape, generator=draw, dtype=said.dtype)).mean()
    loss.backward()
    parts = [p.grad for p in model.model.parameters() if p.requires_grad]
    whole = [part.full_tensor() if isinstance(part, DTensor) else part for part in parts]
    return torch.cat([part.flatten() for part in (*whole, loss.detach())])


MODELS: dict[str, Callable[..., Any]] = {
    "policy": Policy.load,
    "chunked head": lambda *a, **k: Policy.load(
        *a, **k, trainer=TrainerConfig(head_chunk_tokens=5)
    ),
    "checkpointing": lambda *a, **k: Policy.load(
        *a, **k, trainer=TrainerConfig(activation_checkpointing=True)
    ),
    "adapter": lambda *a, **k: Policy.load(*a, **k, adapter=LoraConfig(rank=4, alpha=8)),
    "critic": ValueModel.load,
}


@pytest.mark.parametrize("kind", MODELS)
def test_gradients_are_those_of_the_rows_alone(tiny_model, world, kind, subtests):
    for dtype, limit in ((torch.float64, 1e-10), (torch.float32, 1e-6)):
        torch.manual_seed(0)
        model = MODELS[kind](tiny_model, world, master_dtype=dtype)
        assert model.shares_prefixes
        if kind == "critic":
            model.model.get_output_embeddings().weight.detach().normal_(std=0.1)
            says = [model.values]
        else:
            says = [model.logprobs, lambda packed, m=model: m.scores(packed).entropies]
        for (name, sample), say in itertools.product(SAMPLES.items(), says):
            rows = sample()
            alone = gradients(model, say, [pack_rows([r]) for r in rows if r.num_trained])
            shared = gradients(model, say, [pack_rows(rows, share=True)])
            with subtests.test(name):
                torch.testing.assert_close(shared, alone, rtol=0, atol=limit)
                assert alone.abs().max() > 1e-3


def test_in_bfloat16_they_differ_as_little_as_its_rounding(tiny_model, world):
    model = Policy.load(tiny_model, world, compute_dtype="bfloat16")
    exact = Policy.load(tiny_model, world)
    for sample in SAMPLES.values():
        rows = sample()
        whole = [pack_rows([r]) for r in rows if r.num_trained]
        right = gradients(exact, exact.logprobs, whole)
        alone = gradients(model, model.logprobs, whole)
        shared = gradients(model, model.logprobs, [pack_rows(rows, share=True)])
        assert (shared - right).norm() <= 1.3 * (alone - right).norm()


@cases("name", SAMPLES)
def test_every_distinct_token_is_computed_once(name):
    rows = SAMPLES[name]()
    packed, whole = pack_rows(rows, share=True), pack_rows(rows)
    beginnings = {tuple(r.tokens[: end + 1].tolist()) for r in rows for end in range(len(r))}
    few = sum(len(set(r.tokens[:1].tolist())) for r in rows)  # short ones are not shared
    assert len(beginnings) <= packed.tokens.shape[1] <= len(beginnings) + few * 15
    assert packed.num_row_tokens == whole.tokens.shape[1] == sum(map(len, rows))
    if name not in ("nothing in common", "rows of one token"):
        assert packed.tokens.shape[1] < whole.tokens.shape[1]
    assert torch.equal(packed.targets[packed.index], whole.targets[whole.index])
    assert torch.equal(packed.temperatures[packed.index], whole.temperatures[whole.index])
    assert len(packed.targets) <= len(whole.targets)


@cases("kind", ["policy", "checkpointing"])
def test_long_pieces_and_many_copies_are_computed_in_parts(tiny_model, world, monkeypatch, kind):
    monkeypatch.setattr(attention, "_QUERIES", 7)
    monkeypatch.setattr(attention, "MOST_COPIES", 0)
    policy = MODELS[kind](tiny_model, world, master_dtype=torch.float64)
    for sample in SAMPLES.values():
        rows = sample()
        alone = gradients(policy, policy.logprobs, [pack_rows([r]) for r in rows if r.num_trained])
        shared = gradients(policy, policy.logprobs, [pack_rows(rows, share=True)])
        torch.testing.assert_close(shared, alone, rtol=0, atol=1e-10)


@cases(
    "preset, lora",
    [("grpo", LoraConfig(rank=4, alpha=8)), ("ppo-critic", None), ("gspo", None)],
)
@pytest.mark.slow
def test_a_step_is_that_of_separate_rows(tiny_model, world, preset, lora):
    keys = {"preset": preset, "algo.entropy_coef": 0.01, "algo.kl.coef": 0.1}
    algo = load_config(None, {**keys, "algo.kl.reference": "initial"}).algo
    found = []
    for share in (True, False):
        stepper = make_stepper(tiny_model, world, algo, lora=lora, trainer=ROOMY)
        for model in stepper._models:
            assert model.shares_prefixes
            model.shares_prefixes = share
        metrics = [train_tree(stepper, step) for step in range(2)]
        state = stepper.policy.trained_state()
        found.append(([reproducible(m) for m in metrics], state))
        assert (metrics[0]["throughput/prefix_shared"] > 0.3) == share
    (shared, weights), (separate, others) = found
    for mine, theirs in zip(shared, separate, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-9, abs=1e-10)
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, others[name], rtol=0, atol=1e-9)


def kept_bytes(policy: Policy, rows: Sequence[Row], *, share: bool) -> int:
    """The most that a micro-batch of 500 tokens keeps for its backward pass."""
    return max(saved_bytes(policy, packed) for _, packed in micro_batches(rows, 500, share=share))


def test_a_full_micro_batch_keeps_no_more_for_sharing(tiny_model, world):
    policy = Policy.load(tiny_model, world)
    long = RNG.integers(0, VOCAB, 90)
    samples = (
        [row(HEAD, 60) for _ in range(40)],
        [row(long, 20, trained=20) for _ in range(40)],
        [row(long, 2, trained=2) for _ in range(200)],
    )
    for rows in samples:
        full = [row(100) for _ in range(10)]
        limit = kept_bytes(policy, full, share=False)
        assert kept_bytes(policy, rows, share=True) <= 1.03 * limit


def test_flops_are_those_of_what_is_computed(tiny_model):
    cost = FlopCount.of(T.AutoModelForCausalLM.from_pretrained(tiny_model))
    rows = [row(HEAD, 10), row(HEAD, 10)]
    both, whole = pack_rows(rows, share=True), pack_rows(rows[:1])
    part = cost.of_pass(both, gradients=False) - cost.of_pass(whole, gradients=False)
    dense = 2 * 10 * (cost.body + cost.head)
    assert part == pytest.approx(dense + 2 * cost.attention * (30**2 - 20**2))
    same = pack_rows([rows[0], rows[0]], share=True)
    assert cost.of_pass(same, gradients=True) == cost.of_pass(whole, gradients=True)


def test_micro_batches_hold_their_distinct_tokens(tiny_model, world):
    stepper = make_stepper(tiny_model, world, trainer=ROOMY)
    (shard,) = make_shards(*make_tree(0), num_minibatches=1)
    metrics = stepper.train_shard(shard, Phases())
    assert stepper.policy.computed_tokens < stepper.policy.row_tokens
    share = 1 - stepper.policy.computed_tokens / stepper.policy.row_tokens
    assert metrics["throughput/prefix_shared"] == pytest.approx(share)


def sizes(**more: Any) -> dict[str, Any]:
    some = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
    some |= {"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 128}
    return {"vocab_size": VOCAB, "initializer_range": 0.1, "pad_token_id": 0, **some, **more}


CHUNKS = {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size_mlp": 48}
OTHERS: dict[str, tuple[Any, bool]] = {
    "windows": (T.Qwen2Config(**sizes(use_sliding_window=True, sliding_window=12)), True),
    "windows in some layers": (
        T.Qwen2Config(**sizes(use_sliding_window=True, sliding_window=25, max_window_layers=1)),
        True,
    ),
    "experts": (T.MixtralConfig(**sizes(num_local_experts=4)), True),
    "chunks": (
        T.Llama4TextConfig(**sizes(**CHUNKS, attention_chunk_size=12, no_rope_layers=[1, 0])),
        True,
    ),
    "own attention": (
        T.Gemma2Config(**sizes(sliding_window=12, query_pre_attn_scalar=8)),
        False,
    ),
}


@pytest.mark.filterwarnings("ignore")  # of kernels that models look for
@cases("name", OTHERS)
def test_other_models_share_or_compute_rows_apart(world, name, caplog):
    config, shares = OTHERS[name]
    torch.manual_seed(0)
    with caplog.at_level(logging.INFO, "agentgym_rl"):
        policy = Policy(T.AutoModelForCausalLM.from_config(config), world)
    assert policy.shares_prefixes == shares
    assert len([m for m in caplog.messages if "once for each row" in m]) == (not shares)
    if not shares:
        return
    for sample in SAMPLES.values():
        rows = [r for r in sample() if r.num_trained]
        alone = gradients(policy, policy.logprobs, [pack_rows([r]) for r in rows])
        found = gradients(policy, policy.logprobs, [pack_rows(rows, share=True)])
        torch.testing.assert_close(found, alone, rtol=0, atol=2e-6)


def test_a_model_whose_attention_knows_no_branches_computes_rows_apart(tiny_model, world):
    def forgetful(module, *tensors, pieces, **others):
        apart = replace(pieces, branches=None)
        return attention.segment_attention(module, *tensors, pieces=apart, **others)

    T.AttentionInterface.register(attention.SEGMENT_SDPA, forgetful)
    try:
        policy = Policy.load(tiny_model, world)
    finally:
        T.AttentionInterface.register(attention.SEGMENT_SDPA, attention.segment_attention)
    assert not policy.shares_prefixes
    (shard,) = make_shards(*make_tree(0), num_minibatches=1)
    tokens = ShardTokens.from_shard(shard, vocab_size=VOCAB)
    frozen_pass(policy, policy.logprobs, tokens)
    assert policy.computed_tokens == policy.row_tokens > 0


@pytest.fixture
def amplifying(tiny_model):
    """A model whose logits are a thousand times as sensitive to rounding."""
    model = T.AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    model.lm_head.register_forward_hook(lambda layer, inputs, logits: torch.sin(1000 * logits))
    return model


def test_a_model_that_amplifies_rounding_is_packed_like_others(amplifying):
    own = set_own_attention(amplifying)
    chosen = choose_attention(amplifying, own, wanted="rows", longest=64)
    assert chosen == (SEGMENT_SDPA, True)


def test_a_wrong_packing_is_no_rounding_of_a_model_that_amplifies_it(amplifying, monkeypatch):
    own = set_own_attention(amplifying)
    wrong = packing_trial.forward_packed
    monkeypatch.setattr(packing_trial, "forward_packed", lambda *a, **k: 1.05 * wrong(*a, **k))
    assert choose_attention(amplifying, own, wanted="rows", longest=64) == (ROW_BY_ROW, False)
