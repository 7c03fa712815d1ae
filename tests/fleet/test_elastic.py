"""Engines that come and go: always at one version, never the last, and nothing is left behind."""

import asyncio
import json
import stat
from pathlib import Path

import aiohttp
import pytest
from arl_scale.admin_api import FILE, ElasticApi, control_file
from safetensors.torch import load_file

from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError, EngineInfo, InfraError, SamplingParams
from agentgym_rl.engines import EngineSetup
from agentgym_rl.engines.kind import Checked
from agentgym_rl.fleet import Fleet, check_joins, servers
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.runtime import serving
from agentgym_rl.storage.weights_folder import INDEX
from agentgym_rl.weights import write_version

from .fleets import NAMES, Running, running, somebody_elses_engine

pytestmark = pytest.mark.slow
ONE = {"engine.num_servers": 1}


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_one_that_joins_serves_the_current_version_and_one_that_leaves_is_gone(tmp_path):
    async def play() -> None:
        async with running(tmp_path, **ONE) as run:
            await run.publish(1)
            (joined,) = await run.members.add()
            assert (joined.name, joined.state, joined.error) == ("engine-1", "serving", "")
            assert await run.all_serve() == {1}
            listed = await run.members.all()
            assert [(m.name, m.state, m.version) for m in listed] == [
                (name, "serving", 1) for name in NAMES
            ]
            pid = run.processes.pid("engine-0")
            assert await run.members.remove("engine-0") == "engine-0"
            assert run.fleet.router.serving == ["engine-1"]
            assert not is_there(pid)
            assert await run.publish(2) == ("engine-1",)
            assert await run.versions(2) == {2}
            (again,) = await run.members.add()
            assert again.name == "engine-0", "its number, and so its room, is free again"
            assert run.fleet.servers["engine-0"].life == "engine-0#1", "another life"
            run.kill("engine-0")  # it is watched over like the others
            await run.until(lambda: run.fleet.restarts == 1)
            assert await run.all_serve() == {2}

    asyncio.run(play())


def test_a_turn_in_flight_goes_on_elsewhere_with_its_tokens(tmp_path):
    async def play() -> None:
        async with running(tmp_path) as run:
            router = run.fleet.router
            sampling = SamplingParams(max_tokens=400, temperature=1.0, seed=3)
            tokens: list[int] = []
            versions: list[int] = []
            leaving: asyncio.Task[str] | None = None
            async with asyncio.TaskGroup() as tasks:
                async for delta in router.generate(
                    [5, 80, 33], sampling, request_id="r", session_id="s", stream=True
                ):
                    tokens += delta.token_ids
                    versions += delta.versions
                    if leaving is None:
                        (busy,) = [it.name for it in router.replicas if it.load]
                        leaving = tasks.create_task(run.members.remove(busy))
            assert leaving is not None
            assert leaving.result() not in router.serving
            assert len(tokens) == len(versions) > 0
            assert set(versions) == {0}
            assert router.counters["unknown_version_tokens"] == 0

    asyncio.run(play())


def test_the_last_one_cannot_leave_nor_one_that_is_unknown(tmp_path):
    async def play() -> None:
        async with running(tmp_path, **ONE) as run:
            with pytest.raises(InfraError, match="no other engine serves"):
                await run.members.remove("engine-0")
            with pytest.raises(ConfigError, match="no engine 'engine-7'"):
                await run.members.remove("engine-7")
            assert await run.versions(1) == {0}

    asyncio.run(play())


def test_one_that_fails_while_joining_is_told_and_leaves_nothing(tmp_path):
    async def play() -> None:
        async with running(tmp_path, **ONE) as run:
            write_version(tmp_path, 1, load_file(BUNDLED / "model.safetensors"))
            await run.publish(1)
            (tmp_path / "v1" / INDEX).write_bytes(b"nothing of that kind")
            (joined,) = await run.members.add()
            assert joined.error
            assert joined.state == ""
            assert list(run.fleet.servers) == ["engine-0"]
            assert await run.versions(1) == {1}
            await run.publish(2)
            (joined,) = await run.members.add()
            assert joined.error == ""

    asyncio.run(play())


def test_nobody_joins_or_leaves_while_a_version_is_published(tmp_path):
    async def play() -> None:
        async with running(tmp_path) as run:
            await run.fleet.begin_publication(1)
            async with asyncio.TaskGroup() as tasks:
                leaving = tasks.create_task(run.members.remove("engine-1"))
                await asyncio.sleep(0.3)
                assert sorted(run.fleet.router.serving) == NAMES
                await run.fleet.end_publication(1, served=[], failed={})
            assert leaving.result() == "engine-1"
            assert run.fleet.router.serving == ["engine-0"]

    asyncio.run(play())


def test_the_api_wants_its_own_token_and_says_what_is_wrong(tmp_path):
    async def others(scope, receive, send) -> None:
        raise AssertionError("about neither engines nor workers")

    def no_workers():
        raise ConfigError("this run has no rollout workers")

    async def play() -> None:
        async with running(tmp_path, **ONE) as run:
            api = ElasticApi(run.members, no_workers, token="secret", others=others)
            async with (
                serving(api, host="127.0.0.1", port=0) as url,
                aiohttp.ClientSession() as http,
            ):
                good = {"Authorization": "Bearer secret"}

                async def ask(method: str, path: str, headers=good, **body) -> tuple[int, dict]:
                    async with http.request(
                        method, url + path, headers=headers, json=body or None
                    ) as answer:
                        return answer.status, await answer.json()

                assert (await ask("GET", "/engines", {}))[0] == 401
                status, found = await ask("GET", "/engines")
                assert status == 200
                assert found["engines"][0]["requests"] == 0
                assert (await ask("POST", "/engines/remove", engine="engine-0"))[0] == 409
                status, found = await ask("POST", "/engines/add", url="http://127.0.0.1:9")
                assert status == 400
                assert "starts its engines itself" in found["error"]
                assert (await ask("POST", "/engines/add", count=0))[0] == 400
                assert (await ask("POST", "/engines/add", number=1))[0] == 400
                assert (await ask("GET", "/engines/other"))[0] == 404
                assert (await ask("GET", "/workers", {}))[0] == 401
                assert (await ask("GET", "/workers"))[0] == 400
                assert (await ask("POST", "/workers/add", count="two"))[0] == 400

    asyncio.run(play())


def test_where_the_run_is_reached_is_its_owner_s_business(tmp_path):
    with control_file(tmp_path, url="http://127.0.0.1:1", token="secret", timeout_s=60.0):
        file = tmp_path / FILE
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert json.loads(file.read_text())["token"] == "secret"
    assert list(tmp_path.iterdir()) == []


def test_one_with_another_model_or_a_shorter_context_is_refused():
    others = EngineInfo("model", 512, 3, "hash")
    check_joins("engine-1", EngineInfo("model", 600, 0, "hash"), others)
    with pytest.raises(ConfigError, match="different models"):
        check_joins("engine-1", EngineInfo("model", 512, 0, "other"), others)
    with pytest.raises(ConfigError, match="takes 256 tokens"):
        check_joins("engine-1", EngineInfo("model", 256, 0, "hash"), others)


def test_nothing_can_be_asked_before_the_engines_are_there(tmp_path):
    async def play() -> None:
        async with running(tmp_path, **ONE) as run:
            run.fleet.tasks, tasks = None, run.fleet.tasks
            try:
                (joined,) = await run.members.add()
            finally:
                run.fleet.tasks = tasks
            assert "still being started" in joined.error

    asyncio.run(play())


def test_a_server_by_url_joins_at_the_next_version_and_is_left_running(tmp_path, monkeypatch):
    seeds = iter([1, 2, 2])

    async def fits(*_: object, **__: object) -> Checked:
        # an embedded engine speaks as vLLM does
        return Checked("vllm", has_spans=True, seed=next(seeds))

    monkeypatch.setattr(servers, "check_server", fits)

    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()

    async def play() -> None:
        async with (
            somebody_elses_engine(tmp_path / "a") as (processes, url),
            somebody_elses_engine(tmp_path / "b") as (_, second),
        ):
            config = load_config(None, {"engine.type": "vllm", "engine.urls": [url]})
            fleet = Fleet(
                EngineSetup.of(config), tmp_path / "config.toml", processes, model_dir=BUNDLED
            )
            run = Running(fleet, processes, tmp_path)
            async with fleet.running():
                await fleet.ready()
                await run.publish(1)
                async with asyncio.TaskGroup() as tasks:
                    watch = tasks.create_task(fleet.watch())
                    await asyncio.sleep(0)
                    asked = run.members
                    with pytest.raises(ConfigError, match="give the URL"):
                        await asked.add()
                    (joined,) = await asked.add(url=f"{second}/")
                    assert (joined.url, joined.state) == (second, "waiting for weights")
                    with pytest.raises(ConfigError, match="already"):
                        await asked.add(url=second)
                    assert fleet.router.serving == ["engine-0"]
                    assert await run.publish(2) == tuple(NAMES)
                    assert await run.versions(4) == {2}
                    assert await asked.remove(url) == "engine-0"
                    assert await run.versions(2) == {2}
                    assert is_there(processes.pid("engine-0")), "it is somebody else's"
                    (refused,) = await asked.add(url=url)
                    assert "same seed" in refused.error
                    assert list(fleet.servers) == ["engine-1"]
                    watch.cancel()

    asyncio.run(play())


def test_nobody_joins_engines_that_share_devices_with_the_trainer(tmp_path):
    async def play() -> None:
        keys = {"cluster.colocated": True, "trainer.num_ranks": 2}
        async with running(tmp_path, **keys) as run:
            with pytest.raises(ConfigError, match="share their devices"):
                await run.members.add()

    asyncio.run(play())
