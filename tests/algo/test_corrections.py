from __future__ import annotations

import pytest
import torch

from agentgym_rl.algo.corrections import behavior_weights
from agentgym_rl.algo.losses import aggregation_weights, ppo_loss
from agentgym_rl.config import ClampCorrection, MaskCorrection, SequenceMaskCorrection

CORRECTIONS = [ClampCorrection(), MaskCorrection(), SequenceMaskCorrection(low=0, high=9)]


@pytest.mark.parametrize("correction", CORRECTIONS, ids=lambda c: c.type)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_bad_logprob_is_dropped_and_poisons_nothing(correction, bad):
    behavior = torch.tensor([-1.0, bad, -2.0])
    proximal = torch.tensor([-1.1, -1.0, -2.1])
    found = behavior_weights(proximal, behavior, torch.tensor([0, 0, 0]), correction)
    assert found.masked.tolist() == [False, True, False]
    current = proximal.clone().requires_grad_()
    anchor = torch.where(found.masked, bad, proximal)
    ones = torch.ones(3)
    ppo_loss(current, anchor, found.weight, ones, ones, clip_low=0.2, clip_high=0.2).loss.backward()
    assert current.grad is not None
    assert current.grad.isfinite().all()
    assert current.grad[1] == 0


def test_weights_by_correction():
    p, b = torch.tensor([0.0, 2.0, -2.0]), torch.zeros(3)
    rows = torch.tensor([0, 0, 1])
    raw = p.exp()
    clamp = behavior_weights(p, b, rows, ClampCorrection(cap=5)).weight
    torch.testing.assert_close(clamp, torch.tensor([1.0, 5.0, raw[2]]))
    mask = behavior_weights(p, b, rows, MaskCorrection(low=0.5, high=5)).weight
    assert mask.tolist() == [1, 0, 0]
    sequence = behavior_weights(p, b, rows, SequenceMaskCorrection(low=0.5, high=3)).weight
    torch.testing.assert_close(sequence, torch.tensor([1.0, raw[1], 0.0]))


def test_no_tokens_are_no_trouble():
    none, index = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    for correction in CORRECTIONS:
        assert len(behavior_weights(none, none, index, correction).weight) == 0
    for aggregation in ("token", "sequence", "constant"):
        weights = aggregation_weights(
            index,
            torch.zeros(3, dtype=torch.int64),
            aggregation=aggregation,
            num_trained_tokens=0,
            num_episodes=0,
            max_tokens=8,
        )
        loss = ppo_loss(none, none, none, none, weights, clip_low=0.2, clip_high=0.2).loss
        assert loss.item() == 0


def test_on_policy_ratio_is_one_and_naive_equals_decoupled():
    x = torch.tensor([-1.0, -2.0], requires_grad=True)
    a, ones = torch.tensor([1.0, -1.0]), torch.ones(2)
    weight = behavior_weights(
        x.detach(), x.detach(), torch.zeros(2).long(), MaskCorrection()
    ).weight
    assert weight.tolist() == [1, 1]
    found = ppo_loss(x, x.detach(), weight, a, ones, clip_low=0.2, clip_high=0.2)
    assert (found.loss.item(), found.clipped.item(), found.kl.item()) == (0, 0, 0)
    found.loss.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [-1, 1]
