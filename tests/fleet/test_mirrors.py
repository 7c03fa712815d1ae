"""Routers of other processes keep the promises of the controller's: the swap of an engine begins in
all of them before it begins at the engine, and what they believe of versions is never wrong."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import msgspec
import pytest
from arl_scale import mirrors as followers_module
from arl_scale.mirrors import Followers
from arl_scale.workers.process import FollowedFleet

from agentgym_rl.config import Config
from agentgym_rl.core import ConfigError, EngineInfo, InfraError, NumberedView, WorkerReport
from agentgym_rl.core.messages import Used
from agentgym_rl.engines import EngineSetup, Router
from agentgym_rl.fleet.parts import shortest
from tests.kit.cases import cases

NAMES = ["engine-0", "engine-1", "engine-2"]


class Engine:
    """Somewhere; says nothing."""

    has_spans = True
    kind = ""

    def __init__(self, url: str) -> None:
        self.url, self.model = url, "tiny"

    async def move(self, url: str) -> None:
        self.url = url

    async def info(self) -> EngineInfo:
        return EngineInfo(self.model, 512, 0, "")

    async def close(self) -> None:
        pass


class Wire:
    """What a worker's client does, without a network."""

    def __init__(self, followers: Followers, name: str) -> None:
        self.followers, self.name = followers, name

    async def follow(self, told: WorkerReport) -> NumberedView | None:
        said = msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=WorkerReport)
        view = await self.followers.follow(self.name, said)
        return msgspec.msgpack.decode(msgspec.msgpack.encode(view), type=NumberedView | None)


class Pair:
    """A controller's router and one that follows it."""

    def __init__(self, monkeypatch, *, poll_s: float = 0.0) -> None:
        monkeypatch.setattr(followers_module, "POLL_S", poll_s)
        monkeypatch.setattr(EngineSetup, "client", lambda setup, url, kind: Engine(url))
        self.router = Router(interrupt="keep", wait_s=1)
        self.urls: dict[str, str] = {}
        self.failed: list[str] = []
        self.followers = Followers(
            self.router, url_of=self.urls.__getitem__, on_failure=self.failed.append
        )
        self.lives = self.ports = 0
        self.follow()

    def follow(self) -> None:
        """Another worker takes the place of the one before."""
        self.followers.remove(f"rollout-0#{self.lives}")
        self.lives += 1
        name = f"rollout-0#{self.lives}"
        self.followers.add(name)
        self.worker = FollowedFleet(EngineSetup.of(Config()), Wire(self.followers, name))

    def add(self, name: str, version: int, incarnation: int = 0) -> None:
        self.ports += 1
        self.urls[name] = f"http://{name}:{self.ports}"
        engine = Engine(self.urls[name])
        self.router.add(name, engine, version=version, incarnation=incarnation)

    async def look(self) -> None:
        await self.worker._look()

    @property
    def believed(self) -> dict[str, tuple[int, int] | None]:
        """What the worker takes for certain: version and incarnation; None while a replica
        swaps."""
        return {
            it.name: None if it.calm is None else (it.version, it.incarnation)
            for it in self.worker.router.replicas
        }


@cases("seed", range(40))
def test_what_a_worker_believes_is_never_wrong(seed, monkeypatch):
    async def play() -> None:
        pair, draw = Pair(monkeypatch), random.Random(seed)
        version, incarnation, truth = 0, 0, dict[str, tuple[int, int]]()

        def check() -> None:
            for name, believed in pair.believed.items():
                url = pair.worker._engines[name].url
                if name in truth and url == pair.urls[name]:
                    assert believed in (None, truth[name])

        for _ in range(60):
            match draw.choice(["add", "remove", "publish", "look", "look", "ranks", "worker"]):
                case "add" if spare := [name for name in NAMES if name not in truth]:
                    name = draw.choice(spare)
                    truth[name] = version, incarnation
                    pair.add(name, version, incarnation)
                case "remove" if truth:
                    name = draw.choice([*truth])
                    del truth[name]
                    pair.router.remove(name)
                case "publish" if truth:
                    swapping = [name for name in truth if draw.random() < 0.6]
                    for _ in range(draw.randint(1, 2)):  # the first is given up
                        pair.router.begin_update(version + 1, swapping)
                        waiting = asyncio.ensure_future(pair.followers.all_know())
                        await asyncio.sleep(0)
                        async with asyncio.timeout(60):
                            while not waiting.done():
                                await pair.look()
                                await asyncio.sleep(0)
                    assert not any(pair.believed.get(name) for name in swapping)
                    version += 1
                    reached = [name for name in swapping if draw.random() < 0.8]
                    truth |= dict.fromkeys(reached, (version, incarnation))
                    check()
                    for name in set(swapping) - set(reached):
                        del truth[name]
                        pair.router.remove(name)
                    pair.router.end_update(version, reached, incarnation=incarnation)
                case "look":
                    await pair.look()
                case "ranks":  # others, which publish the last version again
                    version, incarnation = max(version - 1, 0), incarnation + 1
                case "worker" if draw.random() < 0.3:
                    pair.follow()
            check()
        await pair.look()
        await pair.look()
        assert pair.believed == truth

    asyncio.run(play())


def test_a_publication_waits_for_a_worker_and_not_for_one_that_is_gone(monkeypatch):
    async def play() -> None:
        pair = Pair(monkeypatch)
        pair.add("engine-0", 0)
        await pair.look()
        await pair.look()
        pair.router.begin_update(1)
        waiting = asyncio.ensure_future(pair.followers.all_know())
        await asyncio.sleep(0.02)
        assert not waiting.done()
        pair.followers.remove("rollout-0#1")
        async with asyncio.timeout(60):
            await waiting

    asyncio.run(play())


def test_at_the_end_of_a_run_a_publication_waits_for_nobody(monkeypatch):
    async def play() -> None:
        pair = Pair(monkeypatch)
        pair.add("engine-0", 0)
        await pair.look()
        pair.router.begin_update(1)
        waiting = asyncio.ensure_future(pair.followers.all_know())
        await asyncio.sleep(0.02)
        assert not waiting.done()
        pair.followers.close()
        async with asyncio.timeout(60):
            await waiting

    asyncio.run(play())


def test_a_publication_does_not_wait_for_a_worker_that_only_starts(monkeypatch):
    async def play() -> None:
        pair = Pair(monkeypatch)
        pair.add("engine-0", 0)
        pair.router.begin_update(1)
        async with asyncio.timeout(60):
            await pair.followers.all_know()
        await pair.look()
        assert pair.believed == {"engine-0": None}

    asyncio.run(play())


def test_a_worker_that_does_not_hear_of_it_in_time_is_cut_off(monkeypatch):
    monkeypatch.setattr(followers_module, "BEGIN_TIMEOUT_S", 0.05)

    async def play() -> None:
        pair = Pair(monkeypatch)
        late: list[str] = []
        pair.followers.on_late = lambda name, why: late.append(f"{name}: {why}")
        pair.add("engine-0", 0)
        await pair.look()
        pair.router.begin_update(1)
        await pair.followers.all_know()
        assert [text.partition(": ")[0] for text in late] == ["rollout-0#1"]
        assert "that a version comes" in late[0]
        assert await pair.followers.follow("rollout-0#1", WorkerReport(9, {}, {})) is None

    asyncio.run(play())


def test_what_workers_say_of_engines_is_added_up(monkeypatch):
    async def play() -> None:
        pair = Pair(monkeypatch)
        pair.followers.add("rollout-1")
        told = WorkerReport(0, {"engine-0": 9.0, "engine-1": 2.0}, {"failovers": 2}, ("engine-1",))
        await pair.followers.follow("rollout-0#1", told)
        await pair.followers.follow(
            "rollout-1", WorkerReport(0, {"engine-0": 0.0}, {"failovers": 3})
        )
        assert pair.followers.silent_s == {"engine-0": 0.0, "engine-1": 2.0}
        pair.followers.record(
            "rollout-1", WorkerReport(0, {}, {"failovers": 3}, used=Used("m", 2, 7))
        )
        pair.followers.remove("rollout-1")
        assert sorted(used.programs for used in pair.followers.used) == [0, 7]
        assert pair.followers.counters["failovers"] == 5
        assert pair.failed == ["engine-1"]
        assert shortest({"a": 3.0}, pair.followers.silent_s)["a"] == 3.0

    asyncio.run(play())


def test_engines_of_two_models_are_refused(monkeypatch):
    async def play() -> None:
        pair = Pair(monkeypatch)
        pair.add("engine-0", 0)
        pair.add("engine-1", 0)
        await pair.look()
        pair.worker._engines["engine-1"].model = "large"
        with pytest.raises(ConfigError, match="different models"):
            await pair.worker.ready()

    asyncio.run(play())


def test_without_an_engine_an_episode_waits_and_is_told(monkeypatch):
    async def play() -> None:
        pair = Pair(monkeypatch)
        limits = SimpleNamespace(start_timeout_s=0.02)
        pair.worker._setup = SimpleNamespace(engine=limits)
        with pytest.raises(InfraError, match="an engine that serves"):
            await pair.worker.wait_serving()

    asyncio.run(play())


def test_workers_know_that_engines_sleep(monkeypatch):
    async def play() -> None:
        pair = Pair(monkeypatch)
        pair.add("engine-0", 0)
        await pair.look()
        pair.router.set_asleep(True)
        await pair.look()
        assert pair.worker.router.asleep
        pair.router.set_asleep(False)
        await pair.look()
        assert not pair.worker.router.asleep

    asyncio.run(play())
