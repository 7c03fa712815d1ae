"""Loss and gradient against independent values (another file of the same form: ARL_GOLDEN)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter

from agentgym_rl.algo.corrections import behavior_weights
from agentgym_rl.algo.losses import aggregation_weights, ppo_loss
from agentgym_rl.config import Correction

GOLDEN = Path(os.environ.get("ARL_GOLDEN") or Path(__file__).parents[1] / "golden/losses.json")
CASES = json.loads(GOLDEN.read_text())["policy_loss"]
CONFIG_KEYS = "aggregation max_tokens clip_low clip_high dual_clip behavior_correction naive loss"


def marked(index: int, case: dict) -> object:
    config = case["config"]
    unknown = sorted(k for k, v in config.items() if v and k not in CONFIG_KEYS.split())
    reason = f"loss {config['loss']}, {unknown}: not in this version"
    skip = pytest.mark.skipif(config["loss"] != "ppo" or bool(unknown), reason=reason)
    name = f"{index}-{config['loss']}-{config['behavior_correction']['type']}"
    return pytest.param(case, id=f"{name}-{config['aggregation']}", marks=skip)


def loss_of(case: dict, logprobs: torch.Tensor) -> torch.Tensor:
    """The loss of all rows, given [all tokens] current log-probs."""
    config, rows = case["config"], case["rows"]
    flat = {
        name: torch.tensor([x for row in rows for x in row[name]], dtype=torch.float64)
        for name in ("proximal_logprobs", "behavior_logprobs", "loss_mask", "advantages")
    }
    mask = flat["loss_mask"].bool()
    lengths = torch.tensor([len(row["logprobs"]) for row in rows])
    row_index = torch.arange(len(rows)).repeat_interleave(lengths)[mask]
    episodes = torch.tensor([row["episode"] for row in rows]).repeat_interleave(lengths)[mask]
    tokens_per_episode = torch.bincount(episodes, minlength=10)
    proximal, behavior = flat["proximal_logprobs"][mask], flat["behavior_logprobs"][mask]
    correction = TypeAdapter(Correction).validate_python(config["behavior_correction"])
    weight = behavior_weights(proximal, behavior, row_index, correction).weight
    naive = config.get("naive", False)
    return ppo_loss(
        logprobs[mask],
        behavior if naive else proximal,
        torch.ones_like(weight) if naive else weight,
        flat["advantages"][mask],
        aggregation_weights(
            episodes,
            tokens_per_episode,
            aggregation=config["aggregation"],
            num_trained_tokens=int(mask.sum()),
            num_episodes=int((tokens_per_episode > 0).sum()),
            max_tokens=config["max_tokens"],
        ),
        clip_low=config["clip_low"],
        clip_high=config["clip_high"],
        dual_clip=config["dual_clip"],
    ).loss


@pytest.mark.parametrize("case", [marked(i, case) for i, case in enumerate(CASES)])
def test_golden_loss_and_gradient(case):
    flat = [x for row in case["rows"] for x in row["logprobs"]]
    logprobs = torch.tensor(flat, dtype=torch.float64, requires_grad=True)
    loss = loss_of(case, logprobs)
    loss.backward()
    assert loss.item() == pytest.approx(case["loss"], abs=1e-9)
    expected = torch.tensor([g for row in case["grad"] for g in row], dtype=torch.float64)
    torch.testing.assert_close(logprobs.grad, expected, rtol=1e-6, atol=1e-7)
