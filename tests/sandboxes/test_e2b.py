"""The e2b backend begins: the e2b SDK against a protocol fake on loopback.

Each trap that was found in the SDK, or that the network holds, has its test here or in
`test_e2b_loss.py`. What programs see is in `tests/contracts`, over the same fake.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

pytest.importorskip("e2b", reason="the e2b SDK is not installed")
sys.path.insert(0, str(Path(__file__).parent))  # for the parts of the fake

from arl_sandboxes.e2b import E2BBackend
from e2b_fake import fails, options, play, until, use
from e2b_vm import why_not

from agentgym_rl.core import ConfigError, SandboxError, SandboxStartTimeout, SandboxUnavailable
from agentgym_rl.gym import Limits
from tests.kit.cases import cases

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "works"),
]


# ---------------------------------------------------------------------- the account
def test_without_a_key_it_says_what_to_set(server, monkeypatch):
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    with pytest.raises(SandboxUnavailable, match="no API key; set E2B_API_KEY"):
        play(server, lambda backend: backend.create(), api_key="")
    assert not server.requests


def test_the_key_may_come_from_the_environment(server, monkeypatch):
    monkeypatch.setenv("E2B_API_KEY", server.key)
    report = asyncio.run(E2BBackend(**options(server, api_key="")).probe())
    assert report.ok
    assert server.key not in repr(report)


def test_a_wrong_key_is_unavailable_and_says_so(server):
    with pytest.raises(SandboxUnavailable, match="Invalid API key"):
        play(server, lambda backend: backend.create(), api_key="e2b_wrong")
    assert not server.requests["create"]


def test_an_unknown_template_is_unavailable(server):
    async def scenario(backend):
        return await fails(backend.create(), SandboxUnavailable)

    assert "template 'nope' not found" in play(server, scenario, template="nope")


def test_nobody_at_the_address_is_no_answer(server):
    gone = {"api_url": "http://127.0.0.1:9", "call_timeout_s": 5.0}
    report = asyncio.run(E2BBackend(**options(server, **gone)).probe())
    assert not report.ok
    assert "check the network" in report.complaint()


def test_debug_mode_of_the_sdk_is_not_let_in(server, monkeypatch):
    """It would leave out `create` and `kill`, and talk to port 49983 of this machine."""
    monkeypatch.setenv("E2B_DEBUG", "true")
    result = use(server, lambda sandbox: sandbox.run_python("print(1)"))
    assert result.stdout == b"1\n"
    assert (server.requests["create"], server.requests["kill"]) == (1, 1)


@cases("wrong", [{"sandboxes": 0}, {"warm": -1}, {"creates_per_s": 0}, {"lifetime_s": 0}])
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        E2BBackend(**wrong)


def test_what_it_lacks_it_does_not_promise(server):
    with pytest.raises(SandboxUnavailable, match="total_memory"):
        play(server, lambda backend: backend.create(), require=["total_memory"])
    with pytest.raises(SandboxUnavailable, match="network_isolated"):
        play(server, lambda backend: backend.create(), require=["network_isolated"], internet=True)


# ---------------------------------------------------------------------- making machines
def test_a_machine_is_asked_for_without_internet_and_with_an_end(server):
    async def scenario(sandbox):
        return [box.order for box in server.boxes.values()]

    (order,) = use(server, scenario, lifetime_s=77)
    assert (order["allow_internet_access"], order["timeout"]) == (False, 77)
    assert order["metadata"]["agentgym-rl"]
    (with_internet,) = use(server, scenario, internet=True)
    assert with_internet["allow_internet_access"] is True


def test_busy_answers_are_tried_again_with_the_same_key(server):
    server.faults["create"] = [429, 503]
    assert use(server, lambda sandbox: sandbox.run_python("print(1)")).ok
    assert server.requests["create"] == 3
    assert len(server.keys) == 1  # one machine was made
    assert len(server.keys[0]) == 32


def test_busy_for_too_long_is_an_error_and_leaves_the_backend_usable(server):
    async def scenario(backend):
        server.faults["create"] = [503] * 3
        said = await fails(backend.create(), SandboxError)
        async with await backend.create() as sandbox:  # there is one place: it was given back
            return said, await sandbox.run_python("print(1)")

    said, result = play(server, scenario, retries=2, sandboxes=1)
    assert "503" in said
    assert result.ok


@cases("operation", ["create", "files", "start"])
@cases("fault", ["hang", "cut", 500, 504])
def test_a_failed_start_is_an_error(server, operation, fault):
    async def scenario(backend):
        server.faults[operation] = [fault]
        await fails(backend.create(), SandboxError)

    play(server, scenario, call_timeout_s=1.5 if fault == "hang" else 10.0, retries=0)


def test_an_answer_that_was_lost_leaves_no_machine(server):
    async def scenario(backend):
        server.faults["create"] = ["lose"]
        await fails(backend.create(), SandboxError)
        assert len(server.boxes) == 1  # nobody has heard of it

    play(server, scenario, call_timeout_s=1.5)


def test_a_caller_that_gives_up_leaves_no_machine(server):
    async def scenario(backend):
        said = await fails(backend.create(timeout_s=0.05), SandboxStartTimeout)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await backend.create()
        async with await backend.create() as sandbox:
            return said, await sandbox.run_python("print(1)")

    said, result = play(server, scenario, sandboxes=1)
    assert "within 0.05 s" in said
    assert result.ok


def test_creations_are_paced(server):
    async def scenario(backend):
        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(backend.create()) for _ in range(4)]
        for each in made:
            await each.result().close()

    play(server, scenario, creates_per_s=4)
    assert server.created_at[3] - server.created_at[0] > 0.6


@pytest.mark.parametrize("sandboxes", [1, 2])
def test_so_many_at_once_and_first_come_first_served(server, sandboxes):
    order = []

    async def one(backend, number):
        async with await backend.create() as sandbox:
            order.append(number)
            assert len(server.boxes) <= sandboxes
            await sandbox.run_python("print(1)")

    async def scenario(backend):
        async with asyncio.TaskGroup() as tasks:
            for number in range(5):
                tasks.create_task(one(backend, number))
            await asyncio.sleep(0.01)
            assert backend.stats().waiting == 5 - sandboxes
        return backend.stats()

    stats = play(server, scenario, sandboxes=sandboxes)
    assert sorted(order) == [0, 1, 2, 3, 4]
    assert order == sorted(order) or sandboxes > 1  # two that start at once may change places
    assert (stats.created, stats.in_use, stats.waiting, stats.lost) == (5, 0, 0, 0)
    assert stats.queue_wait_max_s > 0


def test_without_a_free_one_it_says_how_many_there_are(server):
    async def scenario(backend):
        async with await backend.create():
            return await fails(backend.create(timeout_s=0.1), SandboxStartTimeout)

    assert "at most 1 at once, 1 in use" in play(server, scenario, sandboxes=1)


# ---------------------------------------------------------------------- machines kept ready
def test_a_warm_machine_is_handed_out_and_replaced(server):
    async def scenario(backend):
        await until(lambda: len(backend._warm) == 1)
        (ready,) = server.boxes
        async with await backend.create() as sandbox:
            assert sandbox.id == f"e2b-{ready}"
            assert (await sandbox.run_python("print(1)")).ok
            await until(lambda: len(backend._warm) == 1)

    play(server, scenario, warm=1)


def test_a_warm_machine_that_died_is_never_handed_out(server):
    async def scenario(backend):
        await until(lambda: len(backend._warm) == 1)
        await asyncio.to_thread(server.kill_all)
        await until(lambda: backend.stats().respawns == 1)
        async with await backend.create() as sandbox:
            return await sandbox.run_python("print(1)")

    assert play(server, scenario, warm=1).ok


def test_another_disk_takes_another_runner_of_a_warm_machine(server):
    async def scenario(backend):
        await until(lambda: len(backend._warm) == 1)
        async with await backend.create(limits=Limits(disk_mb=8)) as sandbox:
            return await sandbox.exec(["df", "-m", "--output=size", "/box"])

    assert play(server, scenario, warm=1).stdout.split()[-1] == b"8"


def test_machines_are_renewed(server):
    async def scenario(sandbox):
        (box,) = server.boxes.values()
        await until(lambda: box.num_renewals >= 2)
        return await sandbox.run_python("print(1)")

    assert use(server, scenario, lifetime_s=1).ok
