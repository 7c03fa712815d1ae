"""Loss and gradient against independent values (another file of the same form: ARL_GOLDEN)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from arl_objectives.keys.kl import KlConfig
from arl_objectives.kl import kl_loss

from agentgym_rl.algo import LossTokens, aggregation_weights, behavior_weights, policy_loss
from agentgym_rl.config import AlgoConfig
from tests.kit.cases import cases

GOLDEN = Path(os.environ.get("ARL_GOLDEN") or Path(__file__).parents[1] / "kit/golden.json")
CASES = json.loads(GOLDEN.read_text())["policy_loss"]


def loss_of(case: dict, logprobs: torch.Tensor) -> torch.Tensor:
    """The loss of all rows, given [all tokens] current log-probs."""
    config, rows = dict(case["config"]), case["rows"]
    kl = KlConfig(**config.pop("kl", None) or {}, reference="initial")
    if config.get("naive"):
        config.pop("behavior_correction", None)
    if config["loss"] == "reinforce":
        config = {key: value for key, value in config.items() if not key.startswith("clip_")}
    published = {"behavior_clip": 1.0} if config["loss"] == "ppo" else {}
    algo = AlgoConfig(**config, **published, **({"kl": kl} if kl.coef else {}))
    flat = {
        name: torch.tensor([x for row in rows for x in row[name]], dtype=torch.float64)
        for name in rows[0]
        if name != "episode"
    }
    mask = flat["loss_mask"].bool()
    lengths = torch.tensor([len(row["logprobs"]) for row in rows])
    row_index = torch.arange(len(rows)).repeat_interleave(lengths)[mask]
    episodes = torch.tensor([row["episode"] for row in rows]).repeat_interleave(lengths)[mask]
    tokens_per_episode = torch.bincount(episodes, minlength=10)
    proximal, behavior = flat["proximal_logprobs"][mask], flat["behavior_logprobs"][mask]
    weight = behavior_weights(proximal, behavior, row_index, algo.behavior_correction).weight
    tokens = LossTokens(
        logprobs=logprobs[mask],
        anchor=behavior if algo.naive else proximal,
        behavior_logprobs=behavior,
        behavior_weight=torch.ones_like(weight) if algo.naive else weight,
        advantages=flat["advantages"][mask],
        weights=aggregation_weights(
            episodes,
            tokens_per_episode,
            aggregation=algo.aggregation,
            num_trained_tokens=int(mask.sum()),
            num_episodes=int((tokens_per_episode > 0).sum()),
            max_tokens=algo.max_tokens,
        ),
        rows=row_index,
        turns=row_index,
    )
    penalty = kl_loss(
        tokens.logprobs, flat["reference_logprobs"][mask], behavior, tokens.weights, kl
    )
    return policy_loss(tokens, algo).loss + penalty


@cases(
    "case",
    [
        pytest.param(case, id=f"{index}-{case['config']['loss']}-{case['config']['aggregation']}")
        for index, case in enumerate(CASES)
    ],
)
def test_golden_loss_and_gradient(case):
    flat = [x for row in case["rows"] for x in row["logprobs"]]
    logprobs = torch.tensor(flat, dtype=torch.float64, requires_grad=True)
    loss = loss_of(case, logprobs)
    loss.backward()
    assert loss.item() == pytest.approx(case["loss"], abs=1e-9)
    expected = torch.tensor([g for row in case["grad"] for g in row], dtype=torch.float64)
    torch.testing.assert_close(logprobs.grad, expected, rtol=1e-6, atol=1e-7)
