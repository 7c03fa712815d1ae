"""Workers are replaced when they are lost, and not when they are slow; their processes are fake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from arl_scale.mirrors import Followers
from arl_scale.workers import workers as module
from arl_scale.workers.client import CutOff, LeasesClient, RunEnding
from arl_scale.workers.elastic import ElasticWorkers
from arl_scale.workers.leases import Leases
from arl_serve.run import serve

from agentgym_rl.cluster import ProcessSpec, Silence
from agentgym_rl.config import Config, RolloutConfig, load_config
from agentgym_rl.controller import Buffer
from agentgym_rl.core import ConfigError, InfraError, ProcessDied, SeededTasks, WorkerReport
from agentgym_rl.engines import Router
from agentgym_rl.rollout import OpenGroups, TaskCursor
from agentgym_rl.storage import EpisodeLog


@pytest.fixture(autouse=True)
def _workers_ask_often(monkeypatch):
    monkeypatch.setattr("arl_scale.mirrors.POLL_S", 0.05)


class Fake:
    """A worker that asks for news, and plays nothing, until it is told to die."""

    def __init__(self, spec: ProcessSpec, *, is_ready: bool = True) -> None:
        self.died: asyncio.Future[ProcessDied | None] = asyncio.get_running_loop().create_future()
        self.is_mute = False
        self._spec, self._is_ready = spec, is_ready
        self.task = asyncio.ensure_future(self._live())

    async def _live(self) -> None:
        url = self._spec.argv[self._spec.argv.index("--controller") + 1]
        async with LeasesClient.connected(url, self._spec.env["ARL_TOKEN"]) as client:
            if self._is_ready:
                await client.ready()
            seen = 0
            try:
                while True:
                    if self.is_mute:
                        await asyncio.sleep(0.05)
                        continue
                    news = await client.follow(WorkerReport(seen, {}, {}))
                    seen = news.number if news else seen
            except (RunEnding, CutOff):
                self.end(None)

    def end(self, how: ProcessDied | None) -> None:
        if not self.died.done():
            self.died.set_result(how)
        if self.task is not asyncio.current_task():
            self.task.cancel()


class FakeProcesses:
    host, forks = "127.0.0.1", None

    def __init__(self, *, are_ready: bool = True) -> None:
        self.all: dict[str, list[Fake]] = {}
        self.forgotten: list[str] = []
        self.no_room = False
        self.are_ready = are_ready

    def __getitem__(self, index: int) -> Fake:
        return self.all[f"rollout-{index}"][-1]

    async def start(self, spec: ProcessSpec) -> None:
        lives = self.all.setdefault(spec.name, [])
        if self.no_room:
            raise ProcessDied(f"{spec.name}: no room")
        lives.append(Fake(spec, is_ready=self.are_ready))

    async def ended(self, name: str) -> ProcessDied | None:
        return await asyncio.shield(self.all[name][-1].died)

    async def end(self, name: str) -> None:
        self.all[name][-1].end(None)

    async def forget(self, name: str) -> None:
        self.forgotten.append(name)
        await self.end(name)

    def log_path(self, name: str) -> Path:
        return Path(f"logs/{name}.log")


@asynccontextmanager
async def running(
    path: Path, *, max_restarts: int = 3, are_ready: bool = True, engine_timeout_s: float = 10.0
) -> AsyncIterator[tuple[ElasticWorkers, FakeProcesses, Leases, asyncio.Task[None]]]:
    config = Config(
        rollout=RolloutConfig(workers=2, max_restarts=max_restarts, episode_timeout_s=1.0)
    )
    log = EpisodeLog(path / "episodes.db")
    buffer = Buffer(config.rollout, total_groups=100)
    cursor = TaskCursor(config.rollout, SeededTasks("train"), seed=config.seed, numbers={})
    hub = Leases(config.rollout, OpenGroups(config.rollout, buffer, log), cursor, numbers={})
    router = Router(interrupt="keep", wait_s=1)
    followers = Followers(router, url_of=lambda name: "", on_failure=lambda name: None)
    processes = FakeProcesses(are_ready=are_ready)
    workers = ElasticWorkers(
        config.rollout,
        path / "config.toml",
        processes,
        hub,
        followers,
        engine_timeout_s=engine_timeout_s,
        stop_timeout_s=config.cluster.stop_timeout_s,
        on_error=lambda error: None,
    )
    async with asyncio.timeout(30), workers.started():
        playing = asyncio.ensure_future(workers.run())
        if are_ready:
            await until(lambda: hub._is_open)
        yield workers, processes, hub, playing
        playing.cancel()
    log.close()
    assert all(life.died.done() for lives in processes.all.values() for life in lives)


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_a_worker_that_dies_is_replaced_and_what_it_had_is_leased_again(tmp_path):
    async def play() -> None:
        async with running(tmp_path) as (workers, processes, hub, _):
            (first, second) = hub._lives.values()
            lease = await hub.lease(first)
            processes[0].end(ProcessDied("rollout-0 was killed"))
            await until(lambda: hub.num_ready == 2 and not hub.is_alive(first))
            assert workers.restarts == 1
            assert (await hub.lease(second)).group_id == lease.group_id
            assert [life.id for life in hub._lives.values()] == ["rollout-1", "rollout-0#1"]

    asyncio.run(play())


def test_a_worker_that_ends_by_itself_before_the_run_does_is_lost_too(tmp_path):
    async def play() -> None:
        async with running(tmp_path) as (workers, processes, hub, _):
            processes[1].end(None)
            await until(lambda: workers.restarts == 1 and hub.num_ready == 2)

    asyncio.run(play())


@pytest.mark.slow
def test_a_worker_that_says_nothing_is_lost_and_one_that_is_late_now_and_then_is_not(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(module, "SILENCE_LIMIT_S", 3.0)

    async def play() -> None:
        async with running(tmp_path) as (workers, processes, hub, _):
            for is_mute in (True, False, True, False):
                processes[0].is_mute = is_mute
                await asyncio.sleep(0.5)
            assert workers.restarts == 0
            processes[1].is_mute = True
            await until(lambda: workers.restarts == 1 and hub.num_ready == 2)
            assert len(processes.all["rollout-1"]) == 2

    asyncio.run(play())


def test_a_worker_that_is_late_for_a_publication_is_cut_off(tmp_path):
    async def play() -> None:
        async with running(tmp_path) as (workers, _, hub, _):
            (first, _) = hub._lives.values()
            workers._followers.on_late(first.id, "it was late")
            assert not hub.is_alive(first)
            await until(lambda: workers.restarts == 1 and hub.num_ready == 2)

    asyncio.run(play())


def test_the_last_one_to_be_lost_for_good_ends_the_run(tmp_path):
    async def play() -> None:
        async with running(tmp_path, max_restarts=0) as (workers, processes, hub, playing):
            processes[0].end(ProcessDied("rollout-0 was killed"))
            await until(lambda: hub.num_ready == 1)
            assert not playing.done()
            processes[1].end(ProcessDied("rollout-1 was killed"))
            with pytest.raises(ProcessDied, match="no rollout worker is left after 0 restarts"):
                await playing
            assert workers.restarts == 0

    asyncio.run(play())


def test_workers_that_cannot_start_are_not_started_again(tmp_path):
    async def play() -> None:
        async with running(tmp_path, are_ready=False) as (workers, processes, _, playing):
            processes[0].end(ProcessDied("rollout-0 exited with 2: no module named x"))
            with pytest.raises(ProcessDied, match="no module named x"):
                await playing
            assert workers.restarts == 0

    asyncio.run(play())


class OneSecondEachLook(Silence):
    """A silence that grows by a second at every look, whatever the clock says."""

    def look(self, *, alive: bool) -> float:
        self.seconds = 0.0 if alive else self.seconds + 1.0
        return self.seconds

    async def listen(self, progress_s: Callable[[], float], *, for_s: float) -> float:
        before_s = progress_s()
        await asyncio.sleep(0)
        return self.look(alive=progress_s() > before_s)


def test_a_worker_that_is_never_ready_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "Silence", OneSecondEachLook)
    monkeypatch.setattr(module, "START_TIMEOUT_S", 3.0)

    async def play() -> None:
        async with running(tmp_path, are_ready=False, engine_timeout_s=2.0) as (_, _, _, playing):
            with pytest.raises(ProcessDied, match=r"rollout-\d was not ready after 5 s"):
                await playing

    asyncio.run(play())


def test_where_other_programs_play_there_are_none():
    with pytest.raises(ConfigError, match="`arl serve` plays no episodes"):
        asyncio.run(serve(Config(rollout=RolloutConfig(workers=1)), progress=None))


def states(workers: ElasticWorkers) -> dict[str, str]:
    return {member.name: member.state for member in workers.all()}


def test_one_joins_and_is_like_the_others_and_one_leaves(tmp_path):
    async def play() -> None:
        async with running(tmp_path) as (workers, processes, hub, playing):
            (joined,) = await workers.add()
            assert (joined.name, joined.error) == ("rollout-2", "")
            assert hub.num_ready == 3
            processes[2].end(ProcessDied("rollout-2 was killed"))
            await until(lambda: workers.restarts == 1 and hub.num_ready == 3)
            assert await workers.remove("rollout-0") == "rollout-0"
            assert processes.forgotten == ["rollout-0"]
            assert states(workers) == {"rollout-1": "playing", "rollout-2": "playing"}
            (joined,) = await workers.add()
            assert joined.name == "rollout-0", "its number is free again"
            assert workers.restarts == 1, "leaving is no loss"
            assert not playing.done()

    asyncio.run(play())


def test_one_that_leaves_may_play_for_as_long_as_an_episode_takes(tmp_path):
    async def play() -> None:
        async with running(tmp_path) as (workers, _, hub, _):
            first, second = hub._lives.values()
            lease = await hub.lease(first)
            leaving = asyncio.ensure_future(workers.remove("rollout-0"))
            await until(lambda: states(workers)["rollout-0"] == "leaving")
            assert await leaving == "rollout-0"
            assert not hub.is_alive(first)
            assert (await hub.lease(second)).group_id == lease.group_id

    asyncio.run(play())


def test_one_that_cannot_start_leaves_the_others_alone(tmp_path):
    async def play() -> None:
        async with running(tmp_path) as (workers, processes, hub, playing):
            processes.no_room = True
            (joined,) = await workers.add()
            assert "no room" in joined.error
            processes.no_room, processes.are_ready = False, False
            adding = asyncio.ensure_future(workers.add(2))
            await until(lambda: len(processes.all.get("rollout-3", ())) == 1)
            with pytest.raises(InfraError, match="rollout-3 is being started"):
                await workers.remove("rollout-3")
            for number in (2, 3):
                processes[number].end(ProcessDied(f"rollout-{number} exited with 2"))
            assert [joined.error for joined in await adding] == [
                "rollout-2 exited with 2",
                "rollout-3 exited with 2",
            ]
            assert states(workers) == {"rollout-0": "playing", "rollout-1": "playing"}
            assert (workers.restarts, hub.num_ready, playing.done()) == (0, 2, False)

    asyncio.run(play())


def test_the_last_one_stays_and_one_that_was_given_up_may_be_forgotten(tmp_path):
    async def play() -> None:
        async with running(tmp_path, max_restarts=0) as (workers, processes, _, _):
            processes[0].end(ProcessDied("rollout-0 was killed"))
            await until(lambda: states(workers)["rollout-0"] == "given up")
            with pytest.raises(InfraError, match="no other rollout worker plays"):
                await workers.remove("rollout-1")
            with pytest.raises(ConfigError, match="no rollout worker 'x': there are rollout-0"):
                await workers.remove("x")
            with pytest.raises(ConfigError, match="between 1 and 64"):
                await workers.add(0)
            await workers.remove("rollout-0")
            assert states(workers) == {"rollout-1": "playing"}

    asyncio.run(play())


def test_nobody_joins_a_run_that_ends(tmp_path):
    async def play() -> None:
        async with running(tmp_path) as (workers, processes, hub, _):
            processes.are_ready = False
            adding = asyncio.ensure_future(workers.add())
            await until(lambda: len(processes.all) == 3)
            hub.close()
            (joined,) = await adding
            assert "the run is ending" in joined.error
            with pytest.raises(InfraError, match="the run is ending"):
                await workers.add()

    asyncio.run(play())


def test_workers_are_refused_what_stands_in_a_notebook():
    own = {"env.options": {"wrappers": ["__main__:Loud"]}, "rollout.workers": 1}
    with pytest.raises(ConfigError, match=r"env\.options\.wrappers: each worker cannot .* Loud"):
        load_config(None, own)
    with pytest.raises(ConfigError, match=r"env\.id: each worker .* or leave rollout\.workers out"):
        load_config(None, {"env.id": "__main__:Guess", "rollout.workers": 1})
