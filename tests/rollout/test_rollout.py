"""The public part `Rollout`: it plays groups, and fills a buffer with them."""

import asyncio
from contextlib import contextmanager

import pytest

from agentgym_rl import Buffer, runs
from agentgym_rl.core import ConfigError
from agentgym_rl.rollout import Player, Rollout
from tests.kit.groups import make_group

SMALL = {"rollout.group_size": 2, "rollout.groups_per_batch": 1}


class Instant:
    """A player whose episodes need no engine: the reward is the number of the member."""

    async def play(self, task, *, episode_id, group_id, sampling):
        number = int(episode_id.rpartition("-")[2])
        return make_group(group_id, [0]).members[number]


@contextmanager
def filling(*, has_buffer=True):
    with runs.temporary(overrides=SMALL) as run:
        buffer = Buffer(run.config.rollout, total_groups=9, log=run.log) if has_buffer else None
        yield Rollout(run, Instant(), buffer=buffer), buffer


def test_an_admitted_group_is_played_and_waits_in_the_buffer():
    async def play(rollout: Rollout) -> tuple[int, str]:
        async for index, task in rollout.admitted():
            group = await rollout.group(task, index=index)
            return index, await rollout.finish(task, group)
        raise AssertionError

    with filling() as (rollout, buffer):
        assert asyncio.run(play(rollout)) == (0, "")
        (group,) = asyncio.run(buffer.batch())
        assert [member.reward for member in group.members] == [0.0, 1.0]


def test_without_a_buffer_there_is_nothing_to_fill():
    with filling(has_buffer=False) as (rollout, _):
        group = asyncio.run(rollout.group(rollout.tasks()[0]))
        assert [member.episode_id for member in group.members] == ["g0-0", "g0-1"]
        with pytest.raises(ConfigError, match="this Rollout has no buffer to fill"):
            asyncio.run(rollout.finish(rollout.tasks()[0], group))


def test_episodes_of_one_agent_are_played_alike_in_evaluations():
    player = Player(*[None] * 6)
    assert player.single_agent is player
