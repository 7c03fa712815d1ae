from __future__ import annotations

import math

import pytest
import torch

from agentgym_rl.algo import Tally, tally_mismatch
from agentgym_rl.algo.aggregation import tally_weights
from agentgym_rl.algo.inputs import BehaviorWeights


def test_mismatch_is_split_by_staleness_with_counts():
    tally = Tally()
    p = torch.tensor([-1.0, -1.0, -1.0, -1.0, -1.0])
    b = p + torch.tensor([0.0, math.log(2), -math.log(2), math.log(4), math.nan])
    spans = torch.tensor([False, False, False, True, False])
    tally_mismatch(tally, p, b, torch.tensor([0, 1, 1, 0, 0]), spans)
    found = tally.values()
    name = "mismatch/token_mult_prob_error"
    assert found[name] == pytest.approx((1 + 2 + 2 + 4) / 4)
    assert found[f"{name}/staleness_0"] == pytest.approx(1)
    assert found[f"{name}/staleness_1"] == pytest.approx(2)
    assert found[f"{name}/several_versions"] == pytest.approx(4)
    assert found["mismatch/num_tokens/staleness_1"] == 2
    assert found["mismatch/num_tokens/several_versions"] == 1
    assert found["mismatch/num_nonfinite"] == 1
    assert found["mismatch/max_abs"] == pytest.approx(math.log(4))
    assert found["mismatch/mean_abs"] == pytest.approx(math.log(16) / 4)
    assert found["mismatch/sampling_importance_ratio"] == pytest.approx((1 + 0.5 + 2 + 0.25) / 4)
    assert found["policy/approx_entropy"] == pytest.approx((1 + 0.5 + 2 + 0.25) / 4)
    assert found["mismatch/mean_abs/staleness_0"] == 0
    assert "mismatch/mean_abs/staleness_1" not in found


def k3(ratio: float) -> float:
    return ratio - math.log(ratio) - 1


def test_divergences_of_engine_and_trainer_are_means_over_tokens():
    """Two tokens, of probabilities 3/4 and 1/5 for the trainer, 1/2 and 2/5 for the engine."""
    tally = Tally()
    p, b = (torch.tensor(it, dtype=torch.float64).log() for it in ([0.75, 0.2], [0.5, 0.4]))
    tally_mismatch(tally, p, b, torch.tensor([0, 0]), torch.tensor([False, False]))
    found = tally.values()
    assert found["mismatch/kl"] == pytest.approx((k3(1.5) + k3(0.5)) / 2)
    assert found["mismatch/kl_reverse"] == pytest.approx((k3(1 / 1.5) + k3(2)) / 2)
    with_mean = k3(0.75 / 0.625) + k3(0.5 / 0.625) + k3(0.2 / 0.3) + k3(0.4 / 0.3)
    assert found["mismatch/js"] == pytest.approx(with_mean / 4)
    entropy = -(1.5 * math.log(0.75) + 0.5 * math.log(0.2)) / 2
    assert found["policy/approx_entropy"] == pytest.approx(entropy)
    assert found["mismatch/mean_abs/staleness_0"] == pytest.approx(math.log(3) / 2)


def test_weights_are_tallied_with_the_dropped_ones():
    tally = Tally()
    masked = torch.tensor([False, False, True])
    tally_weights(tally, BehaviorWeights(torch.tensor([0.5, 1.25, 0.0]), masked))
    names = [f"policy/behavior_weight_{name}" for name in ("mean", "masked", "max")]
    assert tally.values() == dict(zip(names, [1.75 / 3, 1 / 3, 1.25], strict=True))
    nothing = Tally()
    tally_weights(nothing, BehaviorWeights(torch.zeros(0), masked[:0]))
    tally_mismatch(nothing, *[torch.zeros(0)] * 2, torch.zeros(0).long(), masked[:0])
    assert nothing.values() == {"mismatch/num_nonfinite": 0}


def test_merging_tallies_weighs_by_count():
    one, two = Tally(), Tally()
    one.mean("m", 3, 3)
    two.mean("m", 5, 1)
    one.count("c", 2)
    two.count("c", 1)
    one.mean("m", 1, 1)
    two.maximum("x", -4)
    two.maximum("x", -5)
    one.maximum("y", 2)
    two.maximum("y", 3)
    one.minimum("n", 2)
    one.minimum("n", 1)
    two.minimum("n", 3)
    found = Tally.merged([one.parts(), two.parts()]).values()
    assert found == {"m": 9 / 5, "c": 3.0, "x": -4.0, "y": 3.0, "n": 1.0}


def test_a_mean_of_nothing_is_left_out():
    tally = Tally()
    tally.mean("m", 0, 0)
    assert tally.values() == {}
