"""What every registered environment promises; a new one is covered by being registered."""

import asyncio

import pytest

from agentgym_rl import check_env, make
from agentgym_rl.check import Outcome
from agentgym_rl.registry import listing

from .sandboxes import working

SLOW = {"code-v0"}
VALUES: dict[str, str] = {}
"""What ids that are written `name:value` are checked with, by id."""
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
    name = f"{id.rpartition('-v')[0]}:{VALUES[id]}" if id in VALUES else id
    if make(name).needs_sandboxes:
        working("local")
    report = asyncio.run(check_env(name, episodes=4))
    assert report.failed == [], str(report)
    skipped = {each.id for each in report.results if each.outcome is Outcome.SKIPPED}
    assert skipped <= MAY_SKIP.get(id, set()), str(report)
