"""Containers from their making to their end: none too many, none left, none that is dead."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import docker
import pytest
import requests
from arl_sandboxes.docker import DockerBackend, owner

from agentgym_rl.core import ConfigError, SandboxLost, SandboxStartTimeout, SandboxUnavailable
from agentgym_rl.gym import Limits
from tests.kit.cases import cases

from .docker_daemon import Client, play, require_daemon

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def _daemon():
    require_daemon()


@pytest.fixture
def client():
    found = Client()
    yield found
    assert found.mine() == []
    found.api.close()


async def until(condition, timeout_s=20.0):
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)


def test_nothing_is_left_although_nobody_closed_anything(client):
    async def scenario(backend):
        sandbox = await backend.create()
        await (await sandbox.open_session()).run("x = 1")
        return len(client.mine()), sandbox

    num_running, sandbox = play(scenario, warm=1)
    assert num_running >= 1
    asyncio.run(sandbox.close())


def test_a_warm_container_is_at_hand_and_replaced(client):
    async def scenario(backend):
        await until(lambda: len(client.mine()) == 2)
        ready = [name for each in client.mine() for name in each["Names"]]
        sandbox = await backend.create()
        await until(lambda: len(client.mine()) == 3)
        assert f"/{sandbox.container}" in ready
        await sandbox.close()

    play(scenario, warm=2)


def test_a_dead_one_is_not_handed_out(client):
    async def scenario(backend):
        await until(lambda: backend._warm[""])
        await asyncio.to_thread(client.api.kill, client.mine()[0]["Id"])
        async with await backend.create() as sandbox:
            return await sandbox.run_python("print(1)"), backend.stats().respawns

    result, num_replaced = play(scenario, warm=1)
    assert (result.stdout, num_replaced) == (b"1\n", 1)


def test_no_more_than_there_may_be_and_in_order(client):
    served = []

    async def use(backend, number):
        async with await backend.create() as sandbox:
            assert backend.stats().in_use <= 2
            served.append(number)
            await sandbox.run_python("import time; time.sleep(0.1)")

    async def scenario(backend):
        async with asyncio.TaskGroup() as tasks:
            for number in range(6):
                tasks.create_task(use(backend, number))
                await asyncio.sleep(0.01)
        return backend.stats()

    stats = play(scenario, containers=2)
    assert (stats.created, stats.in_use, stats.waiting) == (6, 0, 0)
    assert sorted(served[:2]) + sorted(served[2:4]) == [0, 1, 2, 3]


def test_whoever_waits_too_long_is_told_and_leaves_nothing(client):
    async def scenario(backend):
        async with await backend.create():
            with pytest.raises(SandboxStartTimeout, match="1 in use"):
                await backend.create(timeout_s=0.2)
        async with await backend.create() as again:
            return (await again.run_python("print(1)")).stdout

    assert play(scenario, containers=1) == b"1\n"


@pytest.mark.parametrize("delay_s", [0.0, 0.03, 0.1, 0.2])
def test_a_cancelled_create_leaves_no_container(client, delay_s):
    async def scenario(backend):
        with contextlib.suppress(SandboxStartTimeout):
            await (await backend.create(timeout_s=delay_s)).close()
        async with await backend.create() as sandbox:
            await sandbox.list_files()
        await until(lambda: not client.mine())

    play(scenario, containers=1)


def test_whoever_waits_when_it_closes_is_told():
    async def scenario():
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            async with DockerBackend(containers=1, warm=0) as backend:
                await backend.create()
                waiting = tasks.create_task(_error_of(backend.create()))
                await until(lambda: backend.stats().waiting == 1)
            return await waiting

    assert isinstance(asyncio.run(scenario()), SandboxLost)


HOST = """
import asyncio, time
from arl_sandboxes.docker import DockerBackend
async def main():
    async with DockerBackend(containers=1, warm=1) as backend, await backend.create() as sandbox:
        print("ready", flush=True)
        await sandbox.run_python("import time; time.sleep(99)", limits=None)
asyncio.run(main())
"""


def test_containers_end_with_a_host_that_was_killed(client):
    path = os.pathsep.join([str(ROOT), str(ROOT / "sandboxes")])
    host = subprocess.Popen(
        [sys.executable, "-c", HOST], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}
    )
    with host:
        assert host.stdout
        assert host.stdout.readline() == b"ready\n"
        theirs = [
            c for c in client.api.containers(filters={"label": owner.LABEL}) if _is_of(c, host)
        ]
        host.send_signal(signal.SIGKILL)
    assert theirs
    asyncio.run(until(lambda: not any(_is_there(client, found["Id"]) for found in theirs)))


def test_leftovers_of_dead_processes_are_removed_and_no_others(client):
    ours = owner.labels("test")
    dead = {key: "1:1" if key.endswith("pid") else value for key, value in ours.items()}
    elsewhere = {key: "other" if key.endswith("host") else value for key, value in dead.items()}
    made = [
        client.api.create_container("arl-sandbox:latest", "true", labels=labels)["Id"]
        for labels in (dead, ours, elsewhere)
    ]
    try:
        play(_nothing)
        assert [_is_there(client, id) for id in made] == [False, True, True]
    finally:
        for id in made[1:]:
            client.api.remove_container(id)


def test_a_refused_removal_is_repeated(client, monkeypatch, caplog):
    refusals = [500, 409, 500]

    async def scenario(backend):
        remove = backend._daemon.api.remove_container

        def refuse(*args, **kwargs):
            if not refusals:
                return remove(*args, **kwargs)
            response = requests.Response()
            response.status_code = refusals.pop()
            raise docker.errors.APIError("not now", response)

        async with await backend.create() as sandbox:
            assert (await sandbox.run_python("print(1)")).stdout == b"1\n"
            monkeypatch.setattr(backend._daemon.api, "remove_container", refuse)

    play(scenario)
    assert not refusals
    assert "could not be removed" not in caplog.text


@cases(
    "options, words",
    [
        ({"image": "arl/no-such-image:1"}, "docker pull arl/no-such-image:1"),
        ({"image": "arl-sandbox:none"}, "docker pull"),
        ({"runtime": "no-such-runtime"}, "runc"),
        ({"python": "/no/python3"}, "the image needs /no/python3"),
        ({"base_url": "unix:///no/docker.sock"}, "scripts/dockerd.py start"),
        ({"base_url": "tcp://127.0.0.1:1"}, "DOCKER_HOST"),
    ],
)
def test_it_refuses_and_says_what_to_do(options, words):
    with pytest.raises(SandboxUnavailable, match="cannot work here") as caught:
        play(_nothing, **options)
    assert words in str(caught.value)


def test_a_user_may_be_given():
    async def scenario(backend):
        async with await backend.create(limits=Limits(processes=4)) as sandbox:
            return await sandbox.run_python("import os; print(os.getuid())")

    assert play(scenario, user=1000).stdout == b"1000\n"


@cases("options", [{"containers": 0}, {"warm": -1}, {"user": -1}])
def test_bad_numbers_are_refused(options):
    with pytest.raises(ConfigError, match="expected"):
        DockerBackend(**options)


async def _nothing(backend):
    return None


async def _error_of(awaitable):
    try:
        return await awaitable
    except SandboxLost as error:
        return error


def _is_of(found, process):
    return found["Labels"][f"{owner.LABEL}.pid"].startswith(f"{process.pid}:")


def _is_there(client, id):
    return any(found["Id"] == id for found in client.api.containers(all=True))


def test_gvisor_where_the_daemon_has_it(client):
    async def scenario(backend):
        async with await backend.create() as sandbox:
            version = await sandbox.run_python("print(open('/proc/version').read())")
            session = await sandbox.open_session()
            await session.run("x = 20")
            branch = await session.fork()
            return version.stdout, (await branch.run("x + 1")).stdout

    if "runsc" not in client.api.info()["Runtimes"]:
        pytest.skip("the daemon has no runtime runsc (apt-get install runsc, then dockerd.py)")
    version, value = play(scenario, runtime="runsc")
    assert version != Path("/proc/version").read_bytes()
    assert value == b"21\n"
