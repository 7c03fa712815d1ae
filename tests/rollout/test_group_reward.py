"""The rewards of a finished group: logged with it, trained, asked once, and never a silent 0."""

import asyncio
import sqlite3
import threading
from collections import Counter
from contextlib import closing
from dataclasses import replace

import pytest
from arl_audit.logprobs import wrong_rewards

from agentgym_rl.config import RolloutConfig
from agentgym_rl.controller import Buffer
from agentgym_rl.core import (
    ConfigError,
    EnvError,
    InfraError,
    Outcome,
    Task,
    TooManyErrors,
    Trajectory,
)
from agentgym_rl.rollout import OpenGroups
from agentgym_rl.rollout.groups import GroupRewarder
from agentgym_rl.storage import EpisodeLog, EpisodeReader
from agentgym_rl.storage.recovery import recover

from .test_producer import GROUP_SIZE, chat, play  # noqa: F401

HERE = "tests.rollout.test_group_reward"
asked: Counter[str] = Counter()


def _selected(path, what):
    with closing(sqlite3.connect(path)) as db:
        return db.execute(f"SELECT {what}").fetchall()


async def rank(task, members):
    """Pay the later members more; count the calls by task."""
    asked[task.id] += 1
    calls = {"judge_calls": 1.0, "judge_usd": 0.5}
    return [10.0, *({"reward": 10.0 + i, **calls} for i in range(1, len(members)))]


def plain(task, members):
    return [member.reward for member in members]


async def unreachable(task, members):
    asked[task.id] += 1
    raise InfraError("no judge at http://judge")


async def flaky(task, members):
    if asked[task.id] == 0:
        await unreachable(task, members)
    return await rank(task, members)


async def stuck(task, members):
    await asyncio.sleep(3600)


async def refused(task, members):
    raise EnvError("the judge answered 400")


def broken(task, members):
    raise KeyError("lost")


@pytest.fixture(autouse=True)
def nothing_asked():
    asked.clear()


def member(number: int, group: str = "g0", reward: float = 0.25) -> Trajectory:
    metrics = {"judge_calls": 2.0}
    name = f"{group}-{number}"
    return Trajectory(name, group, "t", Outcome.COMPLETED, reward, [], 1, metrics)


def groups(log: EpisodeLog, recovered=None, **settings) -> OpenGroups:
    config = RolloutConfig(groups_per_batch=1, group_size=2, **settings)
    given = {} if recovered is None else {"recovered": recovered}
    return OpenGroups(config, Buffer(config, total_groups=9), log, **given)


async def finished(found: OpenGroups, index: int = 0) -> None:
    group = found.admit_task(index, Task(f"t{index}", index))
    for number in range(2):
        if await found.add(group, member(number, group.id)):
            await found.finish(group)


@pytest.fixture
def log(tmp_path):
    with closing(EpisodeLog(tmp_path / "episodes.db")) as log:
        log.begin(step=0, checkpoint="", num_ranks=1)
        yield log


def test_rewards_of_groups_are_added_logged_and_trained(play, tmp_path):  # noqa: F811
    found = play(group_reward=f"{HERE}:rank")
    assert len(asked) >= len(found.trained)
    assert set(asked.values()) == {1}
    with closing(EpisodeReader(tmp_path / "episodes.db")) as reader:
        for name in reader.episode_ids():
            episode = reader.trajectory(name)
            assert episode.group_reward == 10.0 + int(name.partition("-")[2])
            assert episode.metrics["group_reward"] == episode.group_reward
            assert episode.reward - (episode.group_reward or 0) in (0.0, 1.0)  # the environment's
        assert wrong_rewards(reader, by_group=True) == []
    assert all(metrics["reward/mean"] > 10 for metrics in found.metrics)
    rewards = {reward for shard in found.shards for reward in shard.rewards}
    assert rewards <= {10.0, 11.0, 12.0}
    assert found.finished.costs["judge_calls"] == sum(asked.values()) * (GROUP_SIZE - 1)


def test_the_audit_notices_rewards_that_were_not_trained(play, tmp_path):  # noqa: F811
    play(group_reward=f"{HERE}:rank")
    with closing(sqlite3.connect(tmp_path / "episodes.db")) as db, db:
        query = "SELECT episode_id, data FROM trajectories JOIN groups g USING (group_id)"
        (name, data), (other, rest) = db.execute(f"{query} WHERE g.step = 0 LIMIT 2").fetchall()
        changed = replace(Trajectory.unpack(data), reward=99.0)
        bare = replace(Trajectory.unpack(rest), group_reward=None)
        update = "UPDATE trajectories SET data = ? WHERE episode_id = ?"
        db.executemany(update, [(changed.pack(), name), (bare.pack(), other)])
    with closing(EpisodeReader(tmp_path / "episodes.db")) as reader:
        sentences = wrong_rewards(reader, by_group=True)
    assert [sentence.partition(":")[0] for sentence in sentences] == ["batch 0"] * 3
    assert "1 episodes have no reward of their group" in sentences[0]
    assert "1 records have another reward than the log's table" in sentences[1]
    assert "was trained" in sentences[2]


def test_a_resumed_run_has_the_rewards_and_does_not_ask_again(log, tmp_path):
    asyncio.run(finished(groups(log, group_reward=f"{HERE}:rank")))
    assert asked == {"t0": 1}
    log.begin(step=0, checkpoint="", num_ranks=1)
    found = recover(log.path, step=0, checkpoint=None, incarnation=1)
    (group,) = found.waiting
    assert [m.reward for m in group.members] == [10.25, 11.25]
    assert [m.group_reward for m in group.members] == [10.0, 11.0]
    ((listed,),) = _selected(log.path, "sum(reward) FROM trajectories")
    assert listed == 21.5
    rewarder = GroupRewarder(RolloutConfig(group_reward=f"{HERE}:rank"))
    again = asyncio.run(rewarder.rewarded(Task("t0", 0), group.members))
    assert again is group.members
    assert asked == {"t0": 1}


def test_a_group_whose_members_survived_a_crash_is_rewarded_then(log):
    open_groups = groups(log, group_reward=f"{HERE}:rank")

    async def crash():
        group = open_groups.admit_task(0, Task("t0", 0))
        for number in range(2):
            await open_groups.add(group, member(number))

    asyncio.run(crash())
    log.begin(step=0, checkpoint="", num_ranks=1)
    found = recover(log.path, step=0, checkpoint=None, incarnation=1)
    resumed = groups(log, found, group_reward=f"{HERE}:rank")

    async def go_on():
        group = resumed.admit_task(0, Task("t0", 0))
        assert resumed.is_whole(group)
        await resumed.finish(group)

    asyncio.run(go_on())
    assert asked == {"t0": 1}
    (group,) = recover(log.path, step=0, checkpoint=None, incarnation=1).waiting
    assert [m.reward for m in group.members] == [10.25, 11.25]


def test_costs_of_members_and_groups_are_summed_once(log):
    found = groups(log, group_reward=f"{HERE}:rank")
    asyncio.run(finished(found))
    assert found.finished.costs == {"judge_calls": 5.0, "judge_usd": 0.5}


def test_a_judge_that_cannot_be_reached_drops_groups_and_then_ends_the_run(log, caplog):
    found = groups(log, group_reward=f"{HERE}:unreachable", max_retries=1)
    asyncio.run(finished(found))
    assert asked == {"t0": 2}
    assert found.buffer.dropped == {"infra_error": 1}
    assert "group g0 is dropped" in caplog.text
    rows = _selected(log.path, "status, cause FROM groups")
    assert rows == [("dropped", "infra_error")]
    for index in range(1, 6):
        asyncio.run(finished(found, index))
    with pytest.raises(TooManyErrors, match="no judge at http://judge"):
        asyncio.run(finished(found, 6))


def test_a_judge_that_fails_once_is_asked_again(log):
    found = groups(log, group_reward=f"{HERE}:flaky")
    asyncio.run(finished(found))
    assert asked == {"t0": 2}
    assert found.buffer.dropped == {}


def test_a_judge_that_refuses_a_group_drops_it_and_is_not_asked_again(log):
    found = groups(log, group_reward=f"{HERE}:refused")
    asyncio.run(finished(found))
    assert found.buffer.dropped == {"env_error": 1}


def test_a_judge_that_never_answers_is_an_infrastructure_failure(log):
    found = groups(log, group_reward=f"{HERE}:stuck", max_retries=0, episode_timeout_s=0.05)
    asyncio.run(finished(found))
    assert found.buffer.dropped == {"infra_error": 1}


def test_a_function_without_async_does_not_block_the_run(log, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(f"{HERE}.plain", lambda task, members: [float(gate.wait(60))] * 2)
    found = groups(log, group_reward=f"{HERE}:plain")

    async def both():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(finished(found))
            tasks.create_task(asyncio.to_thread(lambda: None)).add_done_callback(
                lambda _: gate.set()
            )

    asyncio.run(both())
    assert found.buffer.accepted == 1
    ((listed,),) = _selected(log.path, "sum(reward) FROM trajectories")
    assert listed == 2.5


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ([1.0], "expected a list of 2 rewards"),
        (1.0, "expected a list of 2 rewards"),
        ([1.0, float("nan")], "expected a finite number"),
        ([1.0, {"score": 1.0}], "a dictionary of such with 'reward'"),
        ([1.0, None], "expected a finite number"),
    ],
)
def test_rewards_that_are_none_end_the_run(log, monkeypatch, returned, said):
    monkeypatch.setattr(f"{HERE}.plain", lambda task, members: returned)
    with pytest.raises(ConfigError, match=said):
        asyncio.run(finished(groups(log, group_reward=f"{HERE}:plain")))


def test_a_function_that_cannot_work_is_refused(log):
    with pytest.raises(ConfigError, match="raised KeyError"):
        asyncio.run(finished(groups(log, group_reward=f"{HERE}:broken")))
    with pytest.raises(ConfigError, match="cannot be called as function"):
        groups(log, group_reward=f"{HERE}:member_less")
    with pytest.raises(ValueError, match="expected module:function"):
        RolloutConfig(group_reward="rank")


def member_less():
    """A function that takes no members."""
