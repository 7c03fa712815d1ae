"""Environments whose episodes keep a sandbox are checked few at a time."""

import asyncio
from typing import ClassVar

import pytest
import toys  # type: ignore[import-not-found]
from arl_check.criteria.isolation import NUM_HOLDING, NUM_TOGETHER

from agentgym_rl import check_env


class Counted(toys.Toy):
    """A toy that counts the episodes that go on at the same time."""

    going: ClassVar[set[int]] = set()
    most = 0

    async def reset(self, **given):
        first = await super().reset(**given)
        type(self).going.add(id(self))
        type(self).most = max(self.most, len(self.going))
        return first

    async def close(self):
        type(self).going.discard(id(self))


class Holding(Counted):
    holds_sandboxes = True
    going: ClassVar[set[int]] = set()
    most = 0


@pytest.mark.parametrize(("env", "most"), [(Counted, NUM_TOGETHER), (Holding, NUM_HOLDING)])
def test_as_many_as_there_are_sandboxes_play_together(env, most):
    report = asyncio.run(check_env(env, only=["isolation"], episodes=2))
    assert report.passed, str(report)
    assert env.most == most
