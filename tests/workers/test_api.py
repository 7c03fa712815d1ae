"""The hub over HTTP: as a worker's client speaks to it, and as nobody should."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import msgspec
import pytest
from arl_scale import mirrors as followers_module
from arl_scale.mirrors import Followers
from arl_scale.workers import api as hub_api
from arl_scale.workers import client as hub_client
from arl_scale.workers import leases as hub_module
from arl_scale.workers.api import LeasesApi
from arl_scale.workers.client import ControllerError, CutOff, LeaseLost, LeasesClient, RunEnding
from arl_scale.workers.leases import Leases

from agentgym_rl.config import Config, RolloutConfig
from agentgym_rl.controller import Buffer
from agentgym_rl.core import (
    Lease,
    Outcome,
    Task,
    TaskSource,
    TooManyErrors,
    Trajectory,
    WorkerReport,
)
from agentgym_rl.engines import Router
from agentgym_rl.rollout import OpenGroups, TaskCursor
from agentgym_rl.runtime import serving
from agentgym_rl.storage import EpisodeLog
from tests.kit.cases import cases
from tests.kit.groups import make_row

CONFIG = Config(rollout=RolloutConfig(groups_per_batch=2, group_size=2), steps=4)
BIG = {"number": 2**70, "text": "\u00e9"}


class Tasks(TaskSource):
    def __getitem__(self, index: int) -> Task:
        return Task(f"t{index}", 2**62 + index, BIG, weight=0.5)


@dataclass
class Served:
    hub: Leases
    buffer: Buffer
    log: EpisodeLog
    followers: Followers
    url: str
    errors: list[Exception]

    def join(self, name: str = "rollout-0"):
        life = self.hub.join(name, 0)
        self.followers.add(life.id)
        return life

    def client(self):
        """Of a worker that has joined."""
        return LeasesClient.connected(self.url, self.join().token)


@asynccontextmanager
async def served(path) -> AsyncIterator[Served]:
    log = EpisodeLog(path / "episodes.db")
    buffer = Buffer(CONFIG.rollout, total_groups=8)
    groups = OpenGroups(CONFIG.rollout, buffer, log)
    cursor = TaskCursor(CONFIG.rollout, Tasks(), seed=CONFIG.seed, numbers={})
    hub = Leases(CONFIG.rollout, groups, cursor, numbers={})
    hub.open()
    router = Router(interrupt="keep", wait_s=1)
    followers = Followers(router, url_of=lambda name: "", on_failure=lambda name: None)
    errors: list[Exception] = []
    api = LeasesApi(hub, followers, on_error=errors.append)
    async with asyncio.timeout(30), serving(api, host="127.0.0.1", port=0) as url:
        yield Served(hub, buffer, log, followers, url, errors)
    log.close()


def episode(lease: Lease, name: str, outcome: Outcome = Outcome.COMPLETED) -> Trajectory:
    rows = [make_row([0])]
    return Trajectory(name, lease.group_id, lease.task_id, outcome, 1.0, rows, error="broke")


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(hub_module, "LONG_POLL_S", 0.1)
    monkeypatch.setattr(followers_module, "POLL_S", 0.1)
    monkeypatch.setattr(hub_client, "_PAUSE_S", 0.01)


def test_a_worker_plays_a_group_and_says_everything_twice(tmp_path):
    async def play() -> None:
        async with served(tmp_path) as s:
            life = s.join()
            async with LeasesClient.connected(s.url, life.token) as client:
                await client.ready()
                assert life.is_ready
                lease = await client.lease()
                assert lease.task == Task("t0", 2**62, BIG, weight=0.5)
                for name in [lease.members[0], *lease.members]:
                    await client.finished(episode(lease, name))
                with pytest.raises(LeaseLost):  # it is finished
                    await client.finished(episode(lease, lease.members[0]))
                assert (s.buffer.accepted, s.buffer.running) == (1, 0)
                assert len(s.log.trajectories()) == 2
                assert s.hub._groups.finished.outcomes == {"completed": 2}

    asyncio.run(play())


def test_what_waits_is_told_that_there_is_nothing_yet(tmp_path):
    async def play() -> None:
        async with served(tmp_path) as s, s.client() as client:
            while s.buffer.capacity:
                assert await client.lease()
            assert await client.lease() is None
            report = WorkerReport((await client.follow(WorkerReport(0, {}, {}))).number, {}, {})
            assert await client.follow(report) is None

    asyncio.run(play())


def test_a_worker_that_was_given_up_is_refused_even_in_the_middle_of_a_poll(tmp_path, monkeypatch):
    monkeypatch.setattr(hub_module, "LONG_POLL_S", 20.0)

    async def play() -> None:
        async with served(tmp_path) as s:
            life = s.join()
            async with LeasesClient.connected(s.url, life.token) as client:
                lease = await client.lease()
                while s.buffer.capacity:
                    await client.lease()
                waiting = asyncio.ensure_future(client.lease())
                await asyncio.sleep(0.05)
                s.hub.lose(life)
                for answer in (waiting, client.finished(episode(lease, "g0-0")), client.ready()):
                    with pytest.raises(CutOff):
                        await answer

    asyncio.run(play())


def test_at_the_end_everybody_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(hub_module, "LONG_POLL_S", 20.0)

    async def play() -> None:
        async with served(tmp_path) as s, s.client() as client:
            while s.buffer.capacity:
                await client.lease()
            waiting = asyncio.ensure_future(client.lease())
            await asyncio.sleep(0.05)
            s.hub.close()
            for answer in (waiting, client.follow(WorkerReport(0, {}, {})), client.lease()):
                with pytest.raises(RunEnding):
                    await answer

    asyncio.run(play())


def test_what_ends_a_run_is_no_workers_fault(tmp_path):
    async def play() -> None:
        async with served(tmp_path) as s, s.client() as client:

            async def fail() -> None:
                for _ in range(20):
                    lease = await client.lease()
                    for name in lease.members:
                        await client.finished(episode(lease, name, Outcome.AGENT_ERROR))

            with pytest.raises(ControllerError, match="HTTP 500"):
                await fail()
            assert isinstance(s.errors[0], TooManyErrors)

    asyncio.run(play())


def test_the_last_words_of_a_worker_are_heard(tmp_path):
    async def play() -> None:
        async with served(tmp_path) as s, s.client() as client:
            s.hub.close()
            with pytest.raises(RunEnding):
                await client.follow(WorkerReport(0, {}, {"failovers": 3}))
            assert s.followers.counters["failovers"] == 3

    asyncio.run(play())


HOSTILE = [
    ("POST", "/member", b""),
    ("POST", "/member", b"\xc1"),
    ("POST", "/member", msgspec.msgpack.encode({"rows": [{}], "outcome": "completed"})),
    ("POST", "/member", msgspec.msgpack.encode([1] * 9)),
    ("POST", "/follow", b"\x80"),
    ("POST", "/follow", msgspec.msgpack.encode({"seen": "x", "silent_s": {}, "counters": {}})),
    ("POST", "/follow", b"x" * (hub_api.MAX_REPORT_BYTES + 1)),
    ("GET", "/lease", b""),
    ("POST", "/nothing", b""),
]


@cases("method, path, body", HOSTILE)
def test_nonsense_is_refused_and_harms_nobody(tmp_path, method, path, body):
    async def play() -> None:
        async with served(tmp_path) as s, aiohttp.ClientSession(s.url) as http:
            headers = {"authorization": f"Bearer {s.join().token}"}
            async with http.request(method, path, data=body, headers=headers) as answer:
                assert answer.status in (400, 404, 413), await answer.text()
            assert s.errors == []

    asyncio.run(play())


@cases("token", ["", "Bearer ", "Bearer wrong", "Basic x", "Bearer \u00e9"])
def test_without_the_token_there_is_nothing(tmp_path, token):
    async def play() -> None:
        async with served(tmp_path) as s, aiohttp.ClientSession(s.url) as http:
            s.join()
            for path in ("/lease", "/member", "/follow", "/ready", "/x"):
                async with http.post(path, data=b"x", headers={"authorization": token}) as answer:
                    assert answer.status == 401

    asyncio.run(play())


def test_a_controller_that_is_gone_is_asked_for_a_while_and_then_named(monkeypatch):
    monkeypatch.setattr(hub_client, "_TRY_FOR_S", 0.1)

    async def play() -> None:
        async with LeasesClient.connected("http://127.0.0.1:9", "x") as client:
            with pytest.raises(ControllerError, match=r"127\.0\.0\.1:9/ready.*refused|Connect"):
                await client.ready()

    asyncio.run(play())
