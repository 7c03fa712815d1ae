"""Whose turn it is on shared devices: engines sleep while ranks have them, and nobody is late."""

import asyncio

import pytest
from arl_scale import colocation

from agentgym_rl.config import load_config
from agentgym_rl.core import SamplingParams
from agentgym_rl.engines import Router
from agentgym_rl.engines.scripted import Say, ScriptedEngine
from agentgym_rl.fleet import Server, turns_of
from agentgym_rl.runtime import ENGINE_CLOCK


class Device(Server):
    """A server that does as its engine does."""

    def __init__(self, name: str) -> None:
        engine = ScriptedEngine(lambda _: Say([7] * 8, delay_s=0.002))
        super().__init__(name, f"http://{name}", engine)  # pyright: ignore[reportArgumentType]
        self.retired = ""

    async def start(self) -> None: ...
    async def ready(self) -> None: ...
    async def restart(self) -> None: ...

    async def ended(self) -> Exception:
        raise NotImplementedError

    async def retire(self, why: str) -> None:
        self.retired = why


class Scene:
    def __init__(self, **keys) -> None:
        config = load_config(None, {"cluster.colocated": True, **keys})
        self.router = Router(interrupt="keep", wait_s=0.5)
        self.servers = [Device("engine-0"), Device("engine-1")]
        for server in self.servers:
            self.router.add(server.name, server.engine, version=0)
        self.turns = turns_of(config.cluster, config.trainer, config.own_engine)(
            self.router,
            servers=lambda: self.servers,
            give_up=self._give_up,
        )
        self.turns.servers_started()
        self.sampled = asyncio.Event()
        """Set by the first token of any turn."""

    async def _give_up(self, server: Server, why: str) -> None:
        self.servers.remove(server)  # pyright: ignore[reportArgumentType]
        self.router.remove(server.name)
        await server.retire(why)

    @property
    def asleep(self) -> list[bool]:
        return [server.engine.asleep for server in self.servers]

    async def batch(self) -> bool:
        return await self.turns.to_ranks()

    async def publish(self, version: int) -> None:
        """As a rank and the fleet do it."""
        self.turns.let_go()
        self.router.begin_update(version)
        await self.turns.begin_publication(self.servers)
        for server in self.servers:
            await server.engine.update_weights("", version=version)
        self.router.end_update(version, [server.name for server in self.servers])
        await self.turns.end_publication(self.servers)

    async def turn(self, name: str = "a") -> list[int]:
        sampling, found = SamplingParams(max_tokens=8), list[int]()
        async for delta in self.router.generate(
            [5, 6], sampling, request_id=name, session_id=name, stream=True
        ):
            found += delta.versions
            self.sampled.set()
        return found


def played(scenario, **keys):
    async def play():
        scene = Scene(**keys)
        try:
            async with asyncio.timeout(60):
                return await scenario(scene)
        finally:
            scene.turns.close()

    return asyncio.run(play())


@pytest.mark.parametrize("level", [1, 2])
def test_a_batch_is_handed_out_once_all_sleep_and_turns_outlast_it(level):
    async def scenario(scene):
        async with asyncio.TaskGroup() as tasks:
            early = tasks.create_task(scene.turn("early"))
            await scene.sampled.wait()
            assert await scene.batch()
            assert scene.asleep == [True, True]
            late = tasks.create_task(scene.turn("late"))
            await asyncio.sleep(0.6)  # longer than the router waits for anything
            assert scene.router.silent_s == dict.fromkeys(scene.router.silent_s, 0.0)
            assert ENGINE_CLOCK.asleep
            await scene.publish(1)
        assert scene.asleep == [False, False]
        assert not ENGINE_CLOCK.asleep
        return early.result(), late.result(), scene.turns.slept()

    early, late, slept = played(scenario, **{"cluster.sleep_level": level})
    assert len(early) == 8
    assert early == sorted(early)
    assert set(early) == {0, 1}
    assert late == [1] * 8
    assert sorted(slept) == ["engine-0", "engine-1"]
    for [(phase, start, end)] in slept.values():
        assert phase == "asleep"
        assert end - start > 0.5


def test_a_server_is_started_in_the_turn_of_engines_alone():
    async def scenario(scene):
        server, started = scene.servers[1], asyncio.Event()

        async def start():
            async with scene.turns.starting_server(server):
                started.set()

        assert await scene.batch()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(start())
            await asyncio.sleep(0.05)
            assert not started.is_set()
            scene.turns.let_go()
            await started.wait()

    played(scenario)


def test_ranks_wait_for_a_server_that_is_being_started(monkeypatch):
    monkeypatch.setattr(colocation, "_POLL_S", 0.05)

    async def scenario(scene):
        async with scene.turns.starting_server(scene.servers[1]):
            assert not await scene.batch()
            assert scene.asleep == [False, False]
        assert await scene.batch()
        assert scene.asleep == [True, True]

    played(scenario)


def test_ranks_load_their_model_while_engines_sleep():
    async def scenario(scene):
        await scene.turns.starting_ranks()
        assert scene.asleep == [True, True]
        await scene.turns.ranks_started()
        assert scene.asleep == [False, False]
        await scene.turns.starting_ranks()
        assert await scene.batch()  # complete already, and handed out at once
        await scene.turns.ranks_started()
        return scene.asleep

    assert played(scenario, **{"cluster.sleep_level": 2}) == [True, True]


def test_who_forgot_its_weights_is_woken_by_a_publication_alone():
    async def scenario(scene):
        assert await scene.batch()
        await scene.turns.starting_ranks()  # those that had the batch are lost
        await scene.turns.ranks_started()
        assert scene.asleep == [True, True]
        await scene.publish(1)
        return scene.asleep

    assert played(scenario, **{"cluster.sleep_level": 2}) == [False, False]


def test_a_publication_that_was_given_up_leaves_sleepers_asleep():
    async def scenario(scene):
        assert await scene.batch()
        scene.turns.let_go()
        await scene.turns.begin_publication(scene.servers)
        scene.turns.give_up_publication()
        assert scene.asleep == [True, True]
        await scene.turns.starting_ranks()
        await scene.turns.ranks_started()
        return scene.asleep

    assert played(scenario) == [False, False]


def test_an_engine_that_does_not_fall_asleep_is_given_up(monkeypatch):
    monkeypatch.setattr(colocation, "_CALL_TIMEOUT_S", 0.1)

    async def scenario(scene):
        hanging = scene.servers[1]

        async def sleep(*, level):
            await asyncio.sleep(60)

        hanging.engine.sleep = sleep
        assert await scene.batch()
        assert "did not fall asleep" in hanging.retired
        return [server.name for server in scene.servers], scene.asleep

    assert played(scenario) == (["engine-0"], [True])


def test_without_shared_devices_nothing_happens():
    async def scenario(scene):
        await scene.turns.starting_ranks()
        assert await scene.batch()
        await scene.publish(1)
        return scene.asleep, scene.turns.slept()

    assert played(scenario, **{"cluster.colocated": False}) == ([False, False], {})
