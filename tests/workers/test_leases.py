"""Leases under any order of joins, losses, late and doubled results: the bound is never exceeded,
nothing is lost, nothing counts twice.

ARL_EXHAUSTIVE=1 tries 20,000 schedules; by default they are 80.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sqlite3
import tempfile
from collections import deque
from pathlib import Path
from unittest.mock import patch

import pytest
from arl_plan.clock import VirtualTimeLoop
from arl_scale.workers import leases as module
from arl_scale.workers.leases import Busy, InvalidRequest, Leases, NotLeased, WorkerLife
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from agentgym_rl.config import Config, RolloutConfig
from agentgym_rl.controller import Buffer
from agentgym_rl.core import Lease, Outcome, SeededTasks, Trajectory
from agentgym_rl.rollout import OpenGroup, OpenGroups, TaskCursor
from agentgym_rl.storage import EpisodeLog, Recovered
from tests.exhaustive import EXHAUSTIVE
from tests.kit.groups import make_row

B, SIZE, STEPS, WORKERS = 2, 2, 4, 3
CONFIG = Config(
    rollout=RolloutConfig(
        groups_per_batch=B, group_size=SIZE, max_staleness=1, workers=WORKERS, max_concurrent=5
    ),
    steps=STEPS,
)
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


class Gated(EpisodeLog):
    """Its transactions are done when the test says so, in their order, in this thread."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.waiting: deque[tuple[asyncio.Future[None], object]] = deque()

    async def _transact(self, actions, *, durably=False):
        done = asyncio.get_running_loop().create_future()
        self.waiting.append((done, actions))
        await done

    def commit(self) -> None:
        done, actions = self.waiting.popleft()
        self._run(actions, durably=False)
        done.set_result(None)


class World:
    """A hub, its workers, and the episodes that were confirmed to them."""

    def __init__(self, recovered: Recovered = Recovered()) -> None:  # noqa: B008 - frozen
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY, prefix="hub-of-arl-"))
        self.loop = VirtualTimeLoop()  # in which a task is drawn at once
        self.log = Gated(self.folder / "episodes.db")
        self.metrics: dict[str, float] = {}
        self.buffer = Buffer(CONFIG.rollout, total_groups=STEPS * B)
        groups = OpenGroups(CONFIG.rollout, self.buffer, self.log, recovered)
        cursor = TaskCursor(
            CONFIG.rollout,
            SeededTasks("train"),
            seed=CONFIG.seed,
            logged=recovered.logged,
            numbers={},
        )
        self.hub = Leases(CONFIG.rollout, groups, cursor, numbers=self.metrics)
        self.hub.open()
        self.lives: list[WorkerLife] = []
        self.lost: list[WorkerLife] = []
        self.numbers = itertools.count()
        self.leases: list[tuple[WorkerLife, Lease]] = []
        self.taking: dict[asyncio.Task[None], tuple[WorkerLife, Trajectory]] = {}
        self.confirmed: dict[str, Trajectory] = {}
        """The episodes whose record in the log was confirmed to a worker."""
        self.trained: list[str] = []
        self.rewards = itertools.count(1)

    def close(self) -> None:
        for task in self.taking:
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()
        self.log.close()
        shutil.rmtree(self.folder)

    def run(self, main):
        async def bounded():
            async with asyncio.timeout(60):
                return await main

        return self.loop.run_until_complete(bounded())

    # ------------------------------------------------------------ what happens
    def join(self) -> None:
        if len(self.lives) < WORKERS:
            life = self.hub.join(f"rollout-{len(self.lives)}", next(self.numbers))
            self.hub.ready(life)
            self.lives.append(life)

    def lose(self, number: int) -> None:
        if self.lives:
            life = self.lives.pop(number % len(self.lives))
            self.hub.lose(life)
            self.lost.append(life)
            assert self.hub.find(life.token) is None

    def dismiss(self, number: int) -> None:
        """A worker is to leave, unless it is the last one."""
        staying = [life for life in self.lives if not life.is_leaving]
        if len(staying) > 1:
            self.hub.dismiss(staying[number % len(staying)])

    def lease(self, number: int) -> Lease | None:
        if not self.lives:
            return None
        life = self.lives[number % len(self.lives)]
        lease = self.run(self.hub.lease(life))
        if lease is not None:
            assert not life.is_leaving, "a group for one that is leaving"
            assert lease.members, "nothing to play"
            assert not set(lease.members) & set(self.confirmed), "played again though it is there"
            self.leases.append((life, lease))
        return lease

    def bring(self, number: int, member: int, how: Outcome) -> None:
        """A worker brings an episode, whether it still may or not; perhaps once more."""
        if not self.leases:
            return
        life, lease = self.leases[number % len(self.leases)]
        name = lease.members[member % len(lease.members)]
        episode = self.episode(lease, name, how)
        task = self.loop.create_task(self.hub.take(life, episode))
        self.taking[task] = (life, episode)
        self.settle()

    def episode(self, lease: Lease, name: str, how: Outcome = Outcome.COMPLETED) -> Trajectory:
        return Trajectory(
            episode_id=name,
            group_id=lease.group_id,
            task_id=lease.task_id,
            outcome=how,
            reward=float(next(self.rewards)),
            rows=[make_row([self.buffer.version])],
        )

    def commit(self) -> None:
        if self.log.waiting:
            self.log.commit()
            self.settle()

    def settle(self) -> None:
        """Let everything go on that can."""

        async def some() -> None:
            for _ in range(8):
                await asyncio.sleep(0)

        self.run(some())
        for task in [task for task in self.taking if task.done()]:
            life, episode = self.taking.pop(task)
            error = task.exception()
            if error is None:
                self.confirmed.setdefault(episode.episode_id, episode)
            elif isinstance(error, NotLeased):
                group = self.hub._groups.get(episode.group_id)
                assert group is None or group not in life.groups
            else:
                assert isinstance(error, Busy), error

    def train(self) -> None:
        """A batch, if there is one: what is in it is young enough."""
        if self.buffer.version == STEPS or not self.buffer.complete:
            return
        assert self.buffer.drop_stale() == []  # nobody is held back for so long here
        groups = self.buffer.take()
        for group in groups:
            assert group.staleness(self.buffer.version) <= CONFIG.rollout.max_staleness
            self.trained.append(group.group_id)
        self.buffer.publish(self.buffer.version + 1)

    def drain(self) -> None:
        """Without accidents the rest of the run is played."""
        while self.lives:
            self.lose(0)
        self.leases.clear()
        self.join()
        for _ in range(40 * STEPS):
            self.train()
            if lease := self.lease(0):
                for name in lease.members:
                    self.leases = [(self.lives[0], lease)]
                    self.bring(0, lease.members.index(name), Outcome.COMPLETED)
            while self.log.waiting:
                self.commit()
            if self.buffer.version == STEPS:
                break
        assert self.buffer.version == STEPS, "the run stands still"
        assert len(set(self.trained)) == len(self.trained) == STEPS * B
        self.check()

    # ------------------------------------------------------------ what must hold
    def check(self) -> None:
        buffer = self.buffer
        on_their_way = self.num_finished - self.log.num_groups
        assert buffer.running == len(self.hub._groups) + on_their_way
        assert buffer.running <= CONFIG.rollout.admitted_groups
        assert buffer.running + buffer.accepted <= (1 + buffer.version + 1) * B
        staying = [life for life in self.lives if not life.is_leaving]
        assert self.metrics.get("rollout/workers", 0) == len(staying)
        held = [group for life in self.lives for group in life.groups]
        assert len(held) == len(set(held)), "two workers play one group"
        with sqlite3.connect(self.log.path) as db:
            rows = db.execute("SELECT episode_id, data FROM trajectories").fetchall()
        there = {name: Trajectory.unpack(data) for name, data in rows}
        for name, episode in self.confirmed.items():
            if episode.outcome.trains:
                assert there[name].reward == episode.reward, "another one is in the log"

    @property
    def num_finished(self) -> int:
        """Groups that the hub has let go of."""
        return self.hub._cursor._index - len(self.hub._groups)


class Schedule(RuleBasedStateMachine):
    world: World | None = None

    @initialize()
    def begin(self):
        self.world = World()
        self.world.join()
        self.world.join()

    @rule()
    def join(self):
        self.world.join()

    @rule(number=st.integers(0, 2))
    def lose(self, number):
        self.world.lose(number)

    @rule(number=st.integers(0, 2))
    def dismiss(self, number):
        self.world.dismiss(number)

    @rule(number=st.integers(0, 2))
    def lease(self, number):
        self.world.lease(number)

    @rule(
        number=st.integers(0, 9),
        member=st.integers(0, 1),
        how=st.sampled_from([Outcome.COMPLETED] * 6 + [Outcome.INFRA_ERROR]),
        commits=st.integers(0, 2),
    )
    def bring(self, number, member, how, commits):
        self.world.bring(-1 - number, member, how)
        for _ in range(commits):
            self.world.commit()

    @rule()
    def commit(self):
        self.world.commit()

    @rule()
    def train(self):
        self.world.train()

    @invariant()
    def books_agree(self):
        if self.world is not None:
            self.world.check()

    def teardown(self):
        if self.world is not None:
            try:
                self.world.drain()
            finally:
                self.world.close()


def try_schedules(count: int = 80) -> None:
    options = settings(
        max_examples=count,
        stateful_step_count=30,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    with patch.object(module, "LONG_POLL_S", 0.0):
        run_state_machine_as_test(Schedule, settings=options)


@pytest.mark.slow
def test_any_schedule_of_workers_keeps_the_books():
    try_schedules(20_000 if EXHAUSTIVE else 80)


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["again", "lost"])
def test_a_planted_bug_is_found(bug, monkeypatch):
    if bug == "again":  # members that came are played again
        missing = property(lambda self: [n for n in self.names])
        monkeypatch.setattr(OpenGroup, "missing", missing)
    else:  # nobody plays what a lost worker had
        monkeypatch.setattr(
            Leases, "lose", lambda self, life: self._lives.pop(life.token, None) and None
        )
    with pytest.raises((AssertionError, ExceptionGroup, sqlite3.Error)):
        try_schedules()


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(module, "LONG_POLL_S", 0.0)
    world = World()
    yield world
    world.close()


def test_groups_are_shared_out_evenly(world):
    world.join()
    world.join()
    assert [world.lease(0) is not None for _ in range(4)] == [True, True, True, False]
    assert world.lease(1) is not None


def test_the_groups_of_a_lost_worker_go_to_the_other_at_once_less_what_it_brought(world):
    world.join()
    world.join()
    first = [world.lease(0) for _ in range(3)]
    world.bring(0, 1, Outcome.COMPLETED)
    world.commit()
    world.lose(0)
    assert world.lease(0).group_id == first[0].group_id
    assert world.leases[-1][1].members == ("g0-0",)
    assert [world.lease(0).group_id for _ in range(2)] == ["g1", "g2"]
    assert world.buffer.running == 3


def test_an_episode_of_another_task_is_refused(world):
    world.join()
    lease = world.lease(0)
    for episode in (
        world.episode(lease, "g9-0"),
        Trajectory("g0-0", "g0", "another", Outcome.COMPLETED, 1.0, []),
    ):
        with pytest.raises(InvalidRequest, match="expected one of"):
            world.run(world.hub.take(world.lives[0], episode))


def test_a_group_that_was_whole_before_the_run_was_resumed_is_finished_without_a_worker():
    lease = Lease("g0", SeededTasks("train")[0].id, 0, "{}", "train", 1.0, ())
    world = World()
    there = {name: world.episode(lease, name) for name in ("g0-0", "g0-1")}
    world.close()
    world = World(Recovered(begun={"g0": there}))
    try:
        with patch.object(module, "LONG_POLL_S", 0.0):
            world.join()
            asked = world.loop.create_task(world.hub.lease(world.lives[0]))
            world.settle()
            world.commit()
            assert world.run(asked) is None
            assert world.buffer.accepted == 1
            assert world.lease(0).group_id == "g1"
    finally:
        world.close()


def test_one_that_leaves_plays_what_it_has_and_no_more(world):
    world.join()
    world.join()
    first, second = world.lives
    lease = world.lease(0)
    world.hub.dismiss(first)
    assert not world.hub.is_over(first)
    assert world.hub.num_ready == 1
    assert world.lease(0) is None
    for member in range(SIZE):
        assert not world.hub.is_over(first)
        world.bring(0, member, Outcome.COMPLETED)
        while world.log.waiting:
            world.commit()
    assert set(world.confirmed) == set(lease.members)
    assert world.hub.is_over(first)
    assert not world.hub.is_over(second)


def test_what_one_that_leaves_does_not_play_is_played_by_others(world):
    world.join()
    world.join()
    lease = world.lease(0)
    world.hub.dismiss(world.lives[0])
    world.lose(0)
    assert world.lease(0) == lease


def test_a_limit_that_falls_while_a_task_is_drawn_leaves_the_task_for_later(world, monkeypatch):
    world.join()
    draw = world.hub._cursor.next

    async def next_as_the_limit_falls():
        world.buffer.limit = 0
        return await draw()

    monkeypatch.setattr(world.hub._cursor, "next", next_as_the_limit_falls)
    assert world.lease(0) is None
    world.buffer.limit = 5
    assert [world.lease(0).group_id, world.buffer.running] == ["g0", 1]
