"""What every registered environment promises; a new one is covered by being registered."""

import asyncio

import pytest

from agentgym_rl import check_env, make
from agentgym_rl.check import Outcome
from agentgym_rl.registry import listing

from .sandboxes import working

SLOW = {"code-v0"}
EXAMPLES = {"mix-v0": "mix:math=2,code=1", "gymnasium-v0": "gymnasium:FrozenLake-v1"}
"""What stands for an environment that must be told what to play."""
MAY_SKIP: dict[str, set[str]] = {}
"""Criteria that do not apply to an environment, by id; all others must be judged."""


@pytest.mark.parametrize(
    "id",
    [
        pytest.param(row.id, marks=[pytest.mark.slow] if row.id in SLOW else [])
        for row in listing("env")
        if row.spec
    ],
)
def test_every_criterion_is_met(id):
    name = EXAMPLES.get(id, id)
    if make(name).needs_sandboxes:
        working("local")
    report = asyncio.run(check_env(name, episodes=4))
    assert report.failed == [], str(report)
    skipped = {each.id for each in report.results if each.outcome is Outcome.SKIPPED}
    assert skipped <= MAY_SKIP.get(id, set()), str(report)
