from __future__ import annotations

import math

import pytest
import torch

from agentgym_rl.algo import Tally, tally_mismatch


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


def test_merging_tallies_weighs_by_count():
    one, two = Tally(), Tally()
    one.mean("m", 3, 3)
    two.mean("m", 5, 1)
    one.count("c", 2)
    two.count("c", 1)
    two.maximum("x", -4)
    assert Tally.merged([one.parts(), two.parts()]).values() == {"m": 2.0, "c": 3.0, "x": -4.0}


def test_a_mean_of_nothing_is_left_out():
    tally = Tally()
    tally.mean("m", 0, 0)
    assert tally.values() == {}
