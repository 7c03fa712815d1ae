"""What every registered environment promises; a new one is covered by being registered."""

import asyncio

import pytest

from agentgym_rl import check_env, make
from agentgym_rl.check import Outcome
from agentgym_rl.registry import listing

from .sandboxes import working

EXAMPLES = {
    "gymnasium-v0": "gymnasium:FrozenLake-v1",
    "mix-v0": "mix:math=2,code=1",
    "reasoning_gym-v0": "reasoning_gym:chain_sum",
}
"""What stands for an environment that must be told what to play."""
_NO_TOOLS = {"tool-results", "call-everything"}
MAY_SKIP = {"gymnasium-v0": {*_NO_TOOLS, "gold"}, "reasoning_gym-v0": _NO_TOOLS}
"""Criteria that do not apply to an environment, by id; all others must be judged."""


@pytest.mark.slow
@pytest.mark.parametrize("id", [row.id for row in listing("env") if row.spec])
def test_every_criterion_is_met(id):
    name = EXAMPLES.get(id, id)
    if make(name).needs_sandboxes:
        working("local")
    report = asyncio.run(check_env(name, episodes=4))
    assert report.failed == [], str(report)
    skipped = {each.id for each in report.results if each.outcome is Outcome.SKIPPED}
    assert skipped <= MAY_SKIP.get(id, set()), str(report)
