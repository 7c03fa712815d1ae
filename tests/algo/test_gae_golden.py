"""GAE against independent values (another file of the same form: ARL_GOLDEN)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from arl_objectives.values import generalized_advantages

from tests.kit.cases import cases

GOLDEN = Path(os.environ.get("ARL_GOLDEN") or Path(__file__).parents[1] / "kit/golden.json")
CASES = json.loads(GOLDEN.read_text())["gae"]


@cases("number", range(len(CASES)))
def test_golden_gae(number):
    """The file has every token of a row, with zeros at those that do not train."""
    case = CASES[number]
    mask = torch.tensor(case["loss_mask"]).bool()
    full = {
        name: torch.tensor(case[name], dtype=torch.float64)
        for name in ("rewards", "values", "advantages", "returns")
    }
    found = generalized_advantages(
        full["rewards"][mask],
        full["values"][mask],
        torch.zeros(int(mask.sum()), dtype=torch.int64),
        discount=case["gamma"],
        gae_lambda=case["lam"],
    )
    for name, values in zip(("advantages", "returns"), found, strict=True):
        torch.testing.assert_close(values, full[name][mask], rtol=1e-9, atol=1e-9)
        assert not full[name][~mask].any()
