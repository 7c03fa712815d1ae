"""Trainer and engine disagree: who is told, when the run ends, and who is said to be wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as T
from trainer_samples import VOCAB, make_row, make_shards, plain_logprobs, replaced, with_behavior

from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import BatchRow, TrainerError
from agentgym_rl.trainer import Policy, ShardTokens, frozen_pass
from agentgym_rl.trainer.agreement import Agreement


@pytest.fixture(scope="module")
def policy(tiny_model, world) -> Policy:
    return Policy.load(tiny_model, world)


@torch.no_grad()
def sampled(policy: Policy, lengths=(9, 17, 45, 30), *, off=0.0) -> list:
    """Rows whose behavior log-probs are those of a plain forward, but for `off` nats."""
    rng = np.random.default_rng(0)
    rows = [make_row(rng, n) for n in lengths]
    with policy.unpacked():
        plain = [plain_logprobs(policy.model, row).numpy() for row in rows]
    return [with_behavior(row, p + off) for row, p in zip(rows, plain, strict=True)]


def checked(agreement: Agreement, policy: Policy, rows: list, *, step: int = 0) -> str:
    groups = ["a", "b"] * (len(rows) // 2)
    items = [BatchRow(row, i) for i, row in enumerate(rows)]
    (shard,) = make_shards(items, [0.0] * len(rows), groups, step=step)
    tokens = ShardTokens.from_shard(shard, vocab_size=VOCAB)
    proximal = frozen_pass(policy, policy.logprobs, tokens)
    return agreement.check(step, tokens, proximal)


def agreed(policy: Policy, *, engine_dtype: str = "float32", **trainer: float) -> Agreement:
    return Agreement(policy, TrainerConfig(**trainer), engine_dtype=engine_dtype)


def test_who_agrees_hears_nothing(policy):
    assert checked(agreed(policy), policy, sampled(policy)) == ""


def test_a_small_disagreement_is_said_once_and_a_large_one_ends_the_run(policy):
    agreement = agreed(policy)
    said = checked(agreement, policy, sampled(policy, off=0.02))
    assert "in batch 0 the log-probs of 53 tokens" in said
    assert "differ by 0.02 nats" in said
    assert "agrees with the trainer and not with the engine" in said
    assert checked(agreement, policy, sampled(policy, off=0.02)) == ""
    with pytest.raises(TrainerError, match=r"differ by 0\.5 nats.*trainer\.mismatch_stop"):
        checked(agreement, policy, sampled(policy, off=0.5))


def test_bounds_are_those_of_the_configuration(policy):
    rows = sampled(policy, off=0.02)
    assert checked(agreed(policy, mismatch_warn=0.03), policy, rows) == ""
    with pytest.raises(TrainerError):
        checked(agreed(policy, mismatch_stop=0.01), policy, rows)
    far = sampled(policy, off=3.0)
    assert checked(agreed(policy, mismatch_stop=1e6), policy, far)
    assert checked(agreed(policy, engine_dtype="bfloat16"), policy, rows) == ""
    few = [make_row(np.random.default_rng(0), 9) for _ in range(2)]
    assert checked(agreed(policy, engine_dtype="bfloat16"), policy, few) == "", (
        "too few to be judged in bfloat16"
    )


def test_only_fresh_tokens_are_judged(policy):
    rows = sampled(policy, off=0.5)
    assert checked(agreed(policy), policy, rows, step=1) == "", "stale"
    after = [replaced(row, policy_versions=row.policy_versions * 2 + 1) for row in rows]
    assert checked(agreed(policy), policy, after, step=1) == "", "asked of version 0"
    fresh = [replaced(row, admitted_versions=row.policy_versions) for row in after]
    with pytest.raises(TrainerError):
        checked(agreed(policy), policy, fresh, step=1)


def test_wrong_packing_is_not_called_the_engines_fault(world):
    """Rows are longer here than the trainer was told that they can be."""
    torch.manual_seed(0)
    model = T.AutoModelForCausalLM.from_config(
        T.Phi3Config(
            vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, intermediate_size=48, initializer_range=0.3, pad_token_id=0,
            max_position_embeddings=128, original_max_position_embeddings=16,
            rope_parameters={
                "rope_type": "longrope", "rope_theta": 10000.0, "factor": 8.0,
                "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
                "original_max_position_embeddings": 16,
            },
        )
    ).eval()  # fmt: skip
    policy = Policy(model, world, trainer=TrainerConfig(max_tokens_per_microbatch=16))
    policy.budget = lambda lengths: 4096
    rows = sampled(policy, (9, 12, 45, 30))
    with pytest.raises(TrainerError, match="agrees with the engine and not with the trainer"):
        checked(agreed(policy), policy, rows)
    assert checked(agreed(policy, mismatch_stop=1e6), policy, rows)
