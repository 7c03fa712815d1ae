"""A fleet of real (embedded) engine processes: dying, coming back, and always at one version."""

import asyncio
import os
import signal

import pytest
from safetensors.torch import load_file

from agentgym_rl.config import load_config
from agentgym_rl.core import UNKNOWN_VERSION, ProcessDied, SamplingParams
from agentgym_rl.engines import EngineSetup
from agentgym_rl.engines.kind import Checked
from agentgym_rl.fleet import Fleet, servers
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.weights import write_version

from .fleets import NAMES, Running, running, somebody_elses_engine

pytestmark = pytest.mark.slow


def test_a_server_that_died_comes_back_at_the_version_of_the_others(tmp_path):
    async def play() -> None:
        async with running(tmp_path) as run:
            assert await run.publish(1) == tuple(NAMES)
            run.kill("engine-1")
            await run.until(lambda: run.fleet.router.serving == ["engine-0"])
            assert await run.publish(2) == ("engine-0",)
            assert await run.all_serve() == {2}
            assert run.fleet.restarts == 1

    asyncio.run(play())


def test_a_server_that_missed_a_version_does_not_serve_the_old_one(tmp_path):
    async def play() -> None:
        async with running(tmp_path) as run:
            await run.publish(1)
            await run.fleet.begin_publication(2)
            write_version(run.folder, 2, load_file(BUNDLED / "model.safetensors"))
            engine = run.fleet.servers["engine-0"].engine
            await engine.update_weights(str(run.folder / "v2"), version=2)
            failed = {"engine-1": "it did not answer"}
            await run.fleet.end_publication(2, served=["engine-0"], failed=failed)
            assert run.fleet.router.serving == ["engine-0"]
            assert await run.all_serve() == {2}

    asyncio.run(play())


def test_no_server_joins_during_a_publication(tmp_path):
    async def play() -> None:
        async with running(tmp_path) as run:
            killed = run.processes.pid("engine-1")
            run.kill("engine-1")
            await run.until(lambda: run.fleet.router.serving == ["engine-0"])
            engines = await run.fleet.begin_publication(1)
            assert list(engines) == ["engine-0"]
            await run.until(lambda: run.processes.pid("engine-1") != killed)
            await run.processes.ready("engine-1", timeout_s=60)
            await asyncio.sleep(0.5)
            assert run.fleet.router.serving == ["engine-0"]
            failed = {"engine-0": "nothing was sent"}
            await run.fleet.end_publication(1, served=[], failed=failed)
            assert await run.all_serve() == {0}

    asyncio.run(play())


def test_a_server_that_hangs_behind_a_healthy_route_is_started_again(tmp_path):
    async def play() -> None:
        async with running(
            tmp_path, **{"engine.num_servers": 1, "engine.stall_timeout_s": 2.0}
        ) as run:
            await run.fleet.servers["engine-0"].engine.pause(interrupt="keep")
            assert await run.versions(1) == {0}  # the turn outlives the server
            assert run.fleet.restarts >= 1

    asyncio.run(play())


def test_a_death_during_a_publication_costs_one_restart(tmp_path):
    async def play() -> None:
        async with running(tmp_path, **{"engine.max_restarts": 1}) as run:
            engines = await run.fleet.begin_publication(1)
            run.kill("engine-1")
            restarted = run.fleet.servers["engine-1"]
            await run.until(lambda: restarted.restarts == 1)
            failed = {name: "gone" for name in engines if name == "engine-1"}
            await run.fleet.end_publication(1, served=[], failed=failed)
            assert await run.all_serve() == {0}

    asyncio.run(play())


def test_an_engine_shares_its_kv_until_it_swaps_and_after(tmp_path):
    """Only between the begin of its own swap and its end is its version uncertain; what its trainer
    leaves unfinished stays uncertain until the next publication."""

    def certain(run) -> dict[str, tuple[int, int] | None]:
        return {
            it.name: None if it.calm is None else (it.version, it.incarnation)
            for it in run.fleet.router.replicas
        }

    async def play() -> None:
        async with running(tmp_path) as run:
            fleet = run.fleet
            one, two = await fleet.begin_publication(1)
            assert certain(run) == {"engine-0": (0, 0), "engine-1": (0, 0)}
            await fleet.begin_swap(1, [one])
            assert certain(run) == {"engine-0": None, "engine-1": (0, 0)}
            await fleet.servers["engine-0"].engine.name_version(1)
            fleet.end_swap(1, served=[one], failed=[])
            await fleet.begin_swap(1, [two])
            assert certain(run) == {"engine-0": (1, 0), "engine-1": None}
            await fleet.replace_publishers(1)
            assert certain(run) == {"engine-0": (1, 0), "engine-1": None}
            run.incarnation(1)
            assert len(await run.publish(1)) == 2
            assert certain(run) == {"engine-0": (1, 1), "engine-1": (1, 1)}

    asyncio.run(play())


def test_an_engine_that_fails_its_swap_leaves_service_before_its_version_is_certain(tmp_path):
    async def play() -> None:
        async with running(tmp_path) as run:
            lives = await run.fleet.begin_publication(1)
            await run.fleet.begin_swap(1, lives)
            one, two = lives
            run.fleet.end_swap(1, served=[one], failed=[two])
            assert run.fleet.router.serving == ["engine-0"]
            with pytest.raises(ValueError, match="engine-7"):
                await run.fleet.begin_swap(1, ["engine-7"])
            failed = {two: "it hung"}
            await run.fleet.end_publication(1, served=[one], failed=failed)
            assert run.fleet.router.serving == ["engine-0"]

    asyncio.run(play())


def test_a_publisher_that_dies_leaves_no_engine_paused_and_no_lock(tmp_path):
    async def play() -> None:
        async with running(tmp_path, **{"engine.num_servers": 1}) as run:
            await run.publish(1)
            await run.fleet.begin_publication(2)
            engine = run.fleet.servers["engine-0"].engine
            await engine.pause(interrupt="keep")
            await run.fleet.replace_publishers(1)
            assert await run.versions(2) == {1}
            run.incarnation(1)
            assert await run.publish(1) == ("engine-0",)
            path = run.folder / "v1.1"  # for servers that come back from now on
            assert (path.exists(), engine.incarnation) == (True, 1)

    asyncio.run(play())


def test_an_engine_that_a_dead_publisher_was_writing_to_is_never_resumed(tmp_path, caplog):
    """Its label says so; the others serve on, and it comes back with the current version."""

    async def play() -> None:
        async with running(tmp_path) as run:
            await run.publish(1)
            await run.fleet.begin_publication(2)
            torn = run.fleet.servers["engine-0"].engine
            await torn.pause(interrupt="keep")
            await torn.name_version(UNKNOWN_VERSION)
            await run.fleet.replace_publishers(1)
            assert run.fleet.router.serving == ["engine-1"]
            assert await run.versions(2) == {1}
            assert await run.all_serve() == {1}
            assert run.fleet.restarts == 1

    with caplog.at_level("INFO"):
        asyncio.run(play())
    assert "ending engine-0: it did not resume after a publication was given up" in caplog.text
    assert "engine-1 serves policy version 1: a publication was given up" in caplog.text


def test_an_attached_server_that_falls_silent_serves_again_once_it_answers(tmp_path, monkeypatch):
    async def fits(*_: object, **__: object) -> Checked:
        # an embedded engine, which speaks as vLLM does
        return Checked("vllm", has_spans=True, seed=1)

    monkeypatch.setattr(servers, "check_server", fits)

    async def play() -> None:
        async with somebody_elses_engine(tmp_path) as (processes, url):
            config = load_config(None, {"engine.type": "vllm", "engine.urls": [url]})
            fleet = Fleet(
                EngineSetup.of(config), tmp_path / "config.toml", processes, model_dir=BUNDLED
            )
            run = Running(fleet, processes, tmp_path)
            async with fleet.running():
                await fleet.ready()
                assert await run.publish(1) == ("engine-0",)
                async with asyncio.TaskGroup() as tasks:
                    watch = tasks.create_task(fleet.watch())
                    os.kill(processes.pid("engine-0"), signal.SIGSTOP)
                    await run.until(lambda: not fleet.router.serving)
                    os.kill(processes.pid("engine-0"), signal.SIGCONT)
                    await run.until(lambda: fleet.wanted)
                    assert await run.publish(2) == ("engine-0#1",)
                    assert await run.versions(2) == {2}
                    assert fleet.restarts == 1
                    watch.cancel()

    asyncio.run(play())


def test_a_publication_names_only_engines_it_knows(tmp_path):
    async def play() -> None:
        async with running(tmp_path, **{"engine.num_servers": 1}) as run:
            with pytest.raises(ValueError, match="no publication is in progress"):
                await run.fleet.end_publication(1, served=["engine-0"], failed={})
            await run.fleet.begin_publication(1)
            with pytest.raises(ValueError, match="engine-7"):
                await run.fleet.end_publication(1, served=["engine-7"], failed={})

    asyncio.run(play())


def test_an_engine_that_left_during_a_publication_costs_the_others_nothing(tmp_path):
    async def play() -> None:
        async with running(tmp_path, **{"engine.num_servers": 2}) as run:
            await run.fleet.begin_publication(1)
            gone = run.fleet.servers.pop("engine-1")
            run.fleet.leave(gone)
            await run.fleet.end_publication(1, served=["engine-0"], failed={"engine-1": "gone"})
            assert run.fleet.version == 1
            assert list(run.fleet.router.serving) == ["engine-0"]
            run.fleet.servers["engine-1"] = gone

    asyncio.run(play())


def test_the_last_server_to_be_given_up_ends_the_watch(tmp_path):
    async def play() -> None:
        async with running(tmp_path, **{"engine.max_restarts": 0}) as run:
            run.kill("engine-0")
            await run.until(lambda: run.fleet.router.serving == ["engine-1"])
            run.kill("engine-1")
            await asyncio.sleep(30)

    with pytest.raises(BaseExceptionGroup) as caught:
        asyncio.run(play())
    assert caught.group_contains(ProcessDied, match="no engine is left")


def test_a_server_that_never_starts_is_the_end(tmp_path):
    async def play() -> None:
        async with running(tmp_path, **{"model.path": str(tmp_path / "nowhere")}):
            pass

    with pytest.raises(ProcessDied, match=r"engine-\d exited with 2"):
        asyncio.run(play())


COLOCATED = {"cluster.colocated": True, "trainer.num_ranks": 2}


async def _handed_out(run: Running) -> None:
    assert await run.fleet.turns.to_ranks()


async def _long_turn(run: Running, name: str) -> list[int]:
    sampling = SamplingParams(max_tokens=400, temperature=2.0)
    call = run.fleet.router.generate([5, 80, 33], sampling, request_id=name, session_id=name)
    return [version async for delta in call for version in delta.versions]


@pytest.mark.parametrize("level", [1, 2])
def test_a_server_killed_in_its_sleep_is_replaced_in_the_engines_turn(tmp_path, level):
    async def play() -> None:
        async with (
            running(tmp_path, **COLOCATED, **{"cluster.sleep_level": level}) as run,
            asyncio.TaskGroup() as tasks,
        ):
            await _handed_out(run)
            turn = tasks.create_task(_long_turn(run, "waits"))
            run.kill("engine-1")
            await run.until(lambda: run.fleet.router.serving == ["engine-0"])
            await asyncio.sleep(0.5)
            assert run.fleet.restarts == 0  # the devices are the ranks'
            assert not turn.done()
            assert await run.publish(1) == ("engine-0",)
            assert await run.all_serve() == {1}
            assert run.fleet.restarts == 1
            assert set(await turn) == {1}
            slept = run.fleet.turns.slept()
            assert {name: len(it) for name, it in slept.items()} == dict.fromkeys(NAMES, 1)

    asyncio.run(play())


def test_publishers_lost_in_the_middle_leave_nobody_resumed_and_nobody_forgotten(tmp_path):
    async def play() -> None:
        async with running(tmp_path, **COLOCATED, **{"cluster.sleep_level": 2}) as run:
            await _handed_out(run)
            assert len(await run.fleet.begin_publication(1)) == 2
            await run.fleet.replace_publishers(1)
            assert all([await s.engine.is_sleeping() for s in run.fleet.servers.values()])
            run.incarnation(1)
            await run.fleet.turns.starting_ranks()
            await run.fleet.turns.ranks_started()
            assert all([await s.engine.is_sleeping() for s in run.fleet.servers.values()])
            await run.publish(1)
            assert await run.all_serve() == {1}
            assert run.fleet.restarts == 0

    asyncio.run(play())


def test_a_publication_to_engines_that_are_awake_is_as_ever(tmp_path):
    async def play() -> None:
        async with running(tmp_path, **COLOCATED) as run:
            assert await run.publish(1) == tuple(NAMES)
            assert await run.all_serve() == {1}

    asyncio.run(play())


def test_publishers_lost_as_they_begin_wake_nobody(tmp_path):
    async def play() -> None:
        async with running(tmp_path, **COLOCATED) as run:
            await _handed_out(run)
            async with run.fleet.membership, asyncio.TaskGroup() as tasks:
                begun = tasks.create_task(run.fleet.begin_publication(1))
                await asyncio.sleep(0)  # it waits for the lock
                await run.fleet.replace_publishers(1)
                await run.fleet.turns.starting_ranks()
                run.fleet.membership.release()
                assert await begun == {}
                await run.fleet.membership.acquire()
            assert all(server.engine.asleep for server in run.fleet.servers.values())
            await _handed_out(run)  # nothing is left in the way

    asyncio.run(play())
