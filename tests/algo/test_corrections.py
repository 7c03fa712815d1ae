from __future__ import annotations

import torch
from arl_objectives.clamp import ClampCorrection
from arl_objectives.covariance import covariances
from arl_objectives.moment_mask import MomentMaskCorrection, largest_moment
from arl_objectives.sequence_mask import SequenceMaskCorrection

from agentgym_rl.algo import behavior_weights, row_sums_to_come
from agentgym_rl.config import MaskCorrection, NoCorrection
from tests.kit.cases import cases

CORRECTIONS = [
    ClampCorrection(),
    MaskCorrection(),
    SequenceMaskCorrection(low=0, high=9),
    SequenceMaskCorrection(low=0, high=9, reduce="sum", weight="row_product"),
    SequenceMaskCorrection(low=0, high=9, reduce="max", measure="k3", weight="row_mean"),
    MomentMaskCorrection(),
    NoCorrection(),
]


@cases("correction", CORRECTIONS, ids=lambda c: c.type)
@cases("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_bad_logprob_is_dropped(correction, bad):
    behavior = torch.tensor([-1.0, bad, -2.0])
    proximal = torch.tensor([-1.1, -1.0, -2.1])
    found = behavior_weights(proximal, behavior, torch.tensor([0, 0, 0]), correction)
    assert found.masked.tolist() == [False, True, False]
    assert found.weight.isfinite().all()


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


def test_the_bounds_of_a_mask_themselves_are_kept():
    p, rows = torch.tensor([-1.0, 0.0, 1.0]), torch.arange(3)
    low, one, high = p.exp().tolist()
    for kind in (MaskCorrection, SequenceMaskCorrection):
        within = behavior_weights(p, torch.zeros(3), rows, kind(low=low, high=high))
        torch.testing.assert_close(within.weight, torch.tensor([low, one, high]))
        beside = behavior_weights(p, torch.zeros(3), rows, kind(low=low * 1.001, high=high * 0.999))
        assert beside.weight.tolist() == [0, 1, 0]


def test_no_tokens_are_no_trouble():
    none, index = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    for correction in CORRECTIONS:
        assert len(behavior_weights(none, none, index, correction).weight) == 0


def test_without_a_correction_there_is_no_weight():
    p, b = torch.tensor([0.0, 2.0, -2.0]), torch.zeros(3)
    assert behavior_weights(p, b, torch.arange(3), NoCorrection()).weight.tolist() == [1, 1, 1]


def test_a_row_has_one_factor():
    """Row 0 has log-ratios 1 and 2, row 1 has -1: means 1.5 and -1, sums 3 and -1."""
    p, b, rows = torch.tensor([1.0, 2.0, -1.0]), torch.zeros(3), torch.tensor([0, 0, 1])
    for weight, logs in {"row_mean": [1.5, 1.5, -1], "row_product": [3, 3, -1]}.items():
        found = behavior_weights(p, b, rows, ClampCorrection(cap=1e9, weight=weight))
        torch.testing.assert_close(found.weight, torch.tensor(logs).exp())
    floor = behavior_weights(p, b, rows, ClampCorrection(cap=3, floor=0.5)).weight
    torch.testing.assert_close(floor, torch.tensor([torch.e, 3, 0.5]))


@cases(
    "reduce, measure, kept",
    [
        ("mean", "ratio", [True, True, True]),  # e^1.5 and e^-1 are in [0.3, 5]
        ("sum", "ratio", [False, False, True]),  # e^3 is not
        ("max", "ratio", [False, False, True]),  # nor is e^2
        ("mean", "k2", [True, True, True]),  # 1.25 and 0.5
        ("sum", "k3", [False, False, True]),  # 0.72 + 4.39, and 0.37
        ("max", "k3_reverse", [True, True, True]),  # 1.14, and 0.72
    ],
)
def test_a_row_is_measured_as_a_whole(reduce, measure, kept):
    p, b, rows = torch.tensor([1.0, 2.0, -1.0]), torch.zeros(3), torch.tensor([0, 0, 1])
    low = 0.3 if measure == "ratio" else 0.0
    rule = SequenceMaskCorrection(low=low, high=5, reduce=reduce, measure=measure, weight="none")
    assert behavior_weights(p, b, rows, rule).weight.bool().tolist() == kept


def test_the_second_moment_is_below_the_limit_as_few_dropped_as_possible():
    moments = torch.tensor([0.09, 0.01, 0.16, 0.0, 0.04])
    assert largest_moment(moments, 0.02) == torch.tensor(0.04).item()  # 0.05 / 3
    assert largest_moment(moments, 0.035) == torch.tensor(0.04).item()  # not 0.14 / 4 = 0.035
    assert largest_moment(moments, 0.036) == torch.tensor(0.09).item()
    assert largest_moment(moments + 1, 1e-9) == 1.0  # one is kept
    assert largest_moment(moments[:0], 1.0) == 0.0
    p, rule = moments.sqrt(), MomentMaskCorrection(limit=0.02)
    found = behavior_weights(p, 0 * p, torch.arange(5), rule, of_batch=0.0401)
    assert found.masked.tolist() == [True, False, True, False, False]


def test_covariances_are_about_the_means_of_the_batch():
    found = covariances(torch.tensor([1.0, -1.0]), torch.tensor([-0.5, -1.5]), (0.5, -1.0))
    assert found.tolist() == [0.25, 0.75]


def test_sums_to_come_stay_in_their_row():
    rows = torch.tensor([0, 0, 0, 2, 5, 5])
    values = torch.tensor([1.0, 2.0, 3.0, 10.0, 20.0, 30.0])
    assert row_sums_to_come(values, rows).tolist() == [6, 5, 3, 10, 50, 30]
    assert len(row_sums_to_come(values[:0], rows[:0])) == 0
