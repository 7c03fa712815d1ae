from __future__ import annotations

import torch

from agentgym_rl.algo.losses import behavior_weights, row_sums_to_come
from agentgym_rl.config import ClampCorrection, MaskCorrection, SequenceMaskCorrection
from tests.kit.cases import cases

CORRECTIONS = [ClampCorrection(), MaskCorrection(), SequenceMaskCorrection(low=0, high=9)]


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


def test_sums_to_come_stay_in_their_row():
    rows = torch.tensor([0, 0, 0, 2, 5, 5])
    values = torch.tensor([1.0, 2.0, 3.0, 10.0, 20.0, 30.0])
    assert row_sums_to_come(values, rows).tolist() == [6, 5, 3, 10, 50, 30]
    assert len(row_sums_to_come(values[:0], rows[:0])) == 0
