"""Imports that hang or die beside innocent ones, and fork servers that cannot be started."""

import asyncio
import os
import resource
import signal
from contextlib import contextmanager

import pytest
from arl_verifier.pool import ProcessPool

from agentgym_rl.core import ConfigError, VerifierError
from tests.kit.cases import cases

MODULES = {
    "hanging": "import time; time.sleep(600)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "crashing": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "leaving": "import os; os._exit(3)",
    "innocent": "def f(): return 1",
}


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    for name, text in MODULES.items():
        (tmp_path / f"{name}_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)


async def told(pool, target):
    try:
        return (await pool.call(target)).status
    except (ConfigError, VerifierError) as error:
        return error


async def both(pool, name):
    """The one and an innocent one, asked for at once."""
    async with asyncio.TaskGroup() as tasks:
        names = [name, "innocent"]
        calls = [tasks.create_task(told(pool, f"{name}_module:f")) for name in names]
    return [call.result() for call in calls]


@cases(
    "name, blame, said",
    [
        ("hanging", ConfigError, "importing it took more than 1 s"),
        ("crashing", ConfigError, "died: killed by SIGSEGV"),
        ("leaving", ConfigError, "died: exit code 3"),
        ("killed", VerifierError, r"'killed_module:f' was cut short: .* killed by SIGKILL"),
    ],
    ids=["hanging", "crashing", "leaving", "killed"],
)
@pytest.mark.slow
def test_an_import_ends_alone(name, blame, said):
    async def main():
        async with ProcessPool(1, load_timeout_s=1) as pool:
            return await both(pool, name)

    error, innocent = asyncio.run(main())
    assert innocent == "done"
    with pytest.raises(blame, match=said):
        raise error


@pytest.mark.slow
def test_closing_ends_who_waits_for_an_import():
    async def main():
        async with asyncio.TaskGroup() as tasks, ProcessPool(1) as pool:
            call = tasks.create_task(told(pool, "hanging_module:f"))
            await asyncio.sleep(0.1)
        return call.result()

    with pytest.raises(VerifierError, match="was closed"):
        raise asyncio.run(main())


def test_an_import_that_is_killed_at_the_start_is_infrastructure():
    async def main():
        async with ProcessPool(1, preload=["killed_module:f"]):
            raise AssertionError

    with pytest.raises(VerifierError, match="is there enough memory"):
        asyncio.run(main())


@contextmanager
def no_room():
    """No file can be opened, and so no process started."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def kill_server(pool):
    os.kill(pool._crew._server._process.pid, signal.SIGKILL)
    await asyncio.sleep(0.2)


def test_a_fork_server_that_cannot_be_started_is_tried_again():
    async def main():
        async with ProcessPool(1) as pool:
            await pool.call("judges:pid")
            async with asyncio.TaskGroup() as tasks:
                with no_room():
                    await kill_server(pool)
                    calls = [
                        tasks.create_task(told(pool, f"{name}:{function}"))
                        for name, function in (("judges", "echo"), ("innocent_module", "f"))
                    ]
                    await asyncio.sleep(0.1)
            return [call.result() for call in calls]

    assert asyncio.run(main()) == ["done", "done"]


@pytest.mark.slow
def test_a_fork_server_that_can_never_be_started_is_an_error():
    async def main():
        async with ProcessPool(1) as pool:
            await pool.call("judges:pid")
            with no_room():
                await kill_server(pool)
                known = told(pool, "judges:pid"), told(pool, "innocent_module:f")
                async with asyncio.TaskGroup() as tasks:
                    calls = [tasks.create_task(call) for call in known]
            return [call.result() for call in calls]

    for error in asyncio.run(main()):
        with pytest.raises(VerifierError, match=r"cannot be started: .*Too many open files"):
            raise error


def test_no_room_at_the_start_is_infrastructure():
    async def main():
        with no_room():
            await ProcessPool(1).__aenter__()

    with pytest.raises(VerifierError, match="Too many open files"):
        asyncio.run(main())
