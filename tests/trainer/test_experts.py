"""The load of experts, and the loss that balances it: by their definitions, and the same however
ranks, meshes and micro-batches divide a batch."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from arl_experts.balance import BalanceTerm
from arl_experts.keys import BalanceKeys
from arl_experts.watch import Watch
from experts_child import CASES, COEF, Case, make_stepper, train, trained, wide
from torch import Tensor
from trainer_samples import make_items, make_shards, save_tiny_model

from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError, Row, TrainerError
from agentgym_rl.trainer import Phases, Policy, step, take_step
from agentgym_rl.trainer import make_stepper as make_configured
from tests.e2e.forked import run_all
from tests.kit.cases import cases
from tests.kit.moe import NO_REPLAY, build, save_moe

CHILD = Path(__file__).with_name("experts_child.py")
MODELS = ("qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about a factor of GPT-OSS


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mixtures")
    for name in MODELS:
        save_moe(folder / name, name)
    return folder


@pytest.fixture(scope="module")
def two_ranks(models, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("ranks")
    run_all(CHILD, *((models, out, rank, *CASES) for rank in (0, 1)))
    return out


def check(found: dict[str, float], expected: dict[str, float]) -> None:
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.slow
@cases("name", CASES)
def test_two_ranks_of_any_mesh_equal_one(models, two_ranks, world, name):
    expected = trained(CASES[name], models, world)
    assert expected["metrics"][1]["experts/max_load"] > 1
    assert ("experts/balance_loss" in expected["metrics"][1]) == CASES[name].balances
    for rank in (0, 1):
        found = json.loads((two_ranks / f"{name}-{rank}.json").read_text())
        for mine, theirs in zip(expected["metrics"], found, strict=True):
            check(theirs, mine)
    for name_of, tensor in torch.load(two_ranks / f"{name}.pt").items():
        torch.testing.assert_close(tensor, expected["weights"][name_of], rtol=1e-9, atol=1e-9)


def by_definition(policy: Policy, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """The numbers of tokens of the experts of each layer, and the sums of the probabilities that
    the routers give them, both [L, 8], over the trained tokens of rows that are computed one by
    one."""
    sigmoid = policy.model.config.model_type == "deepseek_v3"
    counts, sums = [], []
    for row in rows:
        with Watch.of(policy).looking() as seen, policy.unpacked():
            policy.model(torch.as_tensor(row.tokens)[None].long(), use_cache=False)
        before = np.flatnonzero(row.loss_mask) - 1
        for logits, _, ids in seen:
            scores = torch.sigmoid(logits[before]) if sigmoid else logits[before].exp()
            sums.append((scores / scores.sum(-1, keepdim=True)).sum(0))
            counts.append(torch.bincount(ids[before].flatten(), minlength=8).double())
    each = len(counts) // len(rows)
    return tuple(torch.stack(it).unflatten(0, (-1, each)).sum(0) for it in (counts, sums))


@pytest.mark.slow
@cases("model", MODELS)
def test_numbers_and_gradients_are_those_of_the_definition(models, world, model, monkeypatch):
    items, *others = make_items(num_groups=3)
    (shard,) = make_shards(items, *others, num_minibatches=1)
    found = []
    with wide():
        for balances in (True, False):
            case = Case(model, balances=balances, trainer={"num_minibatches": 1})
            policy = (stepper := make_stepper(case, models, world)).policy
            if balances:
                counts, sums = by_definition(policy, [it.row for it in items])
                num_tokens = sum(it.row.num_trained for it in items)
                shares = counts / counts.sum(1, keepdim=True)
                losses = 8 * (shares * sums / num_tokens).sum(1)
                (COEF * losses.sum()).backward()
                expected = gradients(policy)
                policy.model.zero_grad()
            taken = []

            def noted(optimizer, most, policy=policy, taken=taken):
                taken.append(gradients(policy))
                return take_step(optimizer, most)

            monkeypatch.setattr(step, "take_step", noted)
            found.append((stepper.train_shard(shard, Phases()), *taken))
    (metrics, mine), (without, theirs) = found
    assert metrics["loss"] - without["loss"] == pytest.approx(float(COEF * losses.sum()), rel=1e-9)
    assert metrics["experts/balance_loss"] == pytest.approx(float(losses.mean()), rel=1e-9)
    assert metrics["experts/max_load"] == pytest.approx(float((8 * shares).amax(1).mean()))
    assert metrics["experts/idle"] == pytest.approx(float((counts == 0).double().mean()))
    entropies = -torch.special.xlogy(shares, shares).sum(1) / math.log(8)
    assert metrics["experts/load_entropy"] == pytest.approx(float(entropies.mean()))
    assert len(expected) > 4
    for name, more in expected.items():
        torch.testing.assert_close(mine[name] - theirs[name], more, rtol=1e-7, atol=1e-10)


def gradients(policy: Policy) -> dict[str, Tensor]:
    named = policy.model.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def test_a_model_without_known_routers_is_refused(tmp_path, world):
    term = BalanceTerm(BalanceKeys(expert_balance_coef=0.1))
    dense = Policy.load(save_tiny_model(tmp_path), world)
    with pytest.raises(ConfigError, match=r"expert_balance_coef 0.1 has no effect on Qwen3ForCaus"):
        term.use(dense)
    with pytest.raises(ConfigError, match="no router that chooses them is known"):
        term.use(Policy(build(NO_REPLAY["no indices"][0]), world))
    with pytest.raises((ConfigError, TrainerError), match="router"):
        term.use(Policy(build(NO_REPLAY["own choice"][0]), world))


@pytest.mark.slow
def test_the_loss_balances_in_a_configured_run(models, world):
    """With a large coefficient, the fullest experts lose tokens."""
    keys = {"algo.expert_balance_coef": 1, "trainer.learning_rate": 3e-3, "steps": 9}
    config = load_config(None, {**keys, "trainer.schedule": "constant"})
    configured = make_configured(config, world, models / "qwen3_moe")
    metrics = [train(configured, Case(), 0) for _ in range(6)]
    for name in ("max_load", "balance_loss"):
        assert metrics[-1][f"experts/{name}"] < 0.9 * metrics[0][f"experts/{name}"]
    assert metrics[-1]["experts/load_entropy"] > metrics[0]["experts/load_entropy"]
