"""Advantages against independent values (another file of the same form: ARL_GOLDEN)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

from agentgym_rl.algo import episode_advantages
from tests.kit.cases import cases

GOLDEN = Path(os.environ.get("ARL_GOLDEN") or Path(__file__).parents[1] / "kit/golden.json")
CASES = json.loads(GOLDEN.read_text())["advantages"]


@cases("case", CASES, ids=lambda c: f"{c['config']['baseline']}-{c['config']['scale']}")
def test_golden_advantages(case):
    found = episode_advantages(case["rewards"], case["group_id"], **case["config"])
    expected = torch.tensor(case["advantages"], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
