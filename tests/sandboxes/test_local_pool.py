"""The local backend's slots: bounded, fair, replaced when they die, with honest counters."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from arl_sandboxes.local import LocalBackend

from agentgym_rl.core import ConfigError, SandboxLost, SandboxStartTimeout, SandboxUnavailable
from agentgym_rl.gym import Limits
from agentgym_rl.gym.sandbox_records import Status
from tests.kit.cases import cases

pytestmark = pytest.mark.slow

HANG = "import time; time.sleep(60)"


def play(scenario: Callable[[LocalBackend], Awaitable[None]], *, slots: int = 2, **options) -> None:
    async def run() -> None:
        backend = LocalBackend(slots=slots, **options)
        async with asyncio.timeout(60), backend:
            await scenario(backend)

    asyncio.run(run())


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def outer_processes() -> list[int]:
    """Of the slots of this process."""
    found = []
    for pid in children(os.getpid()):
        if b"namespace_server.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
            found.append(pid)
    return found


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)


# ---------------------------------------------------------------------- bounded and fair
def test_no_more_sandboxes_than_slots():
    async def scenario(backend):
        first, second = await backend.create(), await backend.create()
        async with asyncio.TaskGroup() as tasks:
            third = tasks.create_task(backend.create())
            await asyncio.sleep(0.1)
            assert not third.done()
            assert (backend.stats().in_use, backend.stats().waiting) == (2, 1)
            await first.close()
        assert (await third.result().run_python("print(1)")).stdout == b"1\n"
        assert backend.stats().queue_wait_max_s >= 0.09
        await second.close()
        await third.result().close()
        assert (backend.stats().in_use, backend.stats().created) == (0, 3)

    play(scenario)


def test_who_asked_first_is_served_first():
    served = []

    async def scenario(backend):
        async def caller(number):
            async with await backend.create() as sandbox:
                served.append(number)
                await sandbox.run_python("pass")

        held = [await backend.create(), await backend.create()]
        async with asyncio.TaskGroup() as tasks:
            for number in range(12):
                tasks.create_task(caller(number))
                await asyncio.sleep(0)
            for sandbox in held:
                await sandbox.close()

    play(scenario)
    assert served == list(range(12))


def test_waiting_too_long_says_the_numbers():
    async def scenario(backend):
        await backend.create()
        with pytest.raises(
            SandboxStartTimeout, match=r"within 0\.1 s: 1 of 1 slots in use, 1 call"
        ):
            await backend.create(timeout_s=0.1)
        assert backend.stats().waiting == 0

    play(scenario, slots=1)


def test_a_caller_that_is_cancelled_while_it_waits_takes_no_slot_with_it():
    async def scenario(backend):
        for give_back_first in (False, True):
            held = await backend.create()
            waiting = asyncio.create_task(backend.create())
            await asyncio.sleep(0.01)
            if give_back_first:
                await held.close()  # the slot is the waiting caller's, who has not run yet
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await held.close()
            async with await backend.create(timeout_s=5) as sandbox:
                assert (await sandbox.run_python("print(1)")).stdout == b"1\n"

    play(scenario, slots=1)


def test_a_caller_whose_time_is_up_as_a_slot_comes_takes_none_with_it():
    async def scenario(backend):
        for _ in range(20):
            held = await backend.create()
            waiting = asyncio.create_task(backend.create(timeout_s=0.005))
            await asyncio.sleep(0.004)
            time.sleep(0.003)  # noqa: ASYNC251 - now both are due in one turn of the loop
            await held.close()
            with contextlib.suppress(SandboxStartTimeout):
                await (await waiting).close()
            await (await backend.create(timeout_s=5)).close()

    play(scenario, slots=1)


def test_random_cancellations_lose_no_slot():
    import random

    rng = random.Random(0)

    async def caller(backend):
        for _ in range(30):
            try:
                async with asyncio.timeout(rng.uniform(0, 0.02)):
                    async with await backend.create() as sandbox:
                        await sandbox.run_python("print(1)", files={"f": b"1"}, collect=["."])
                        await (await sandbox.open_session()).run("1")
            except TimeoutError:
                pass

    async def scenario(backend):
        async with asyncio.TaskGroup() as tasks:
            for _ in range(8):
                tasks.create_task(caller(backend))
        for sandbox in [await backend.create(timeout_s=5) for _ in range(3)]:
            result = await sandbox.run_python("import os; print(os.listdir('.'))")
            assert (result.stdout, result.killed_processes) == (b"['.shm', '.tmp']\n", 0)
        assert (backend.stats().in_use, backend.stats().lost) == (3, 0)
        assert backend.stats().respawns == 0

    play(scenario, slots=3)


# ---------------------------------------------------------------------- death
@cases("whom", ["process 1", "outer process"])
@cases("running", [True, False])
def test_a_slot_that_is_killed_is_lost_and_replaced(whom, running):
    async def scenario(backend):
        sandbox = await backend.create()
        (outer,) = outer_processes()
        victim = outer if whom == "outer process" else children(outer)[0]
        async with asyncio.TaskGroup() as tasks:
            if running:
                run = tasks.create_task(lost(sandbox.run_python(HANG)))
                await asyncio.sleep(0.1)
            os.kill(victim, signal.SIGKILL)
            await asyncio.sleep(0.1)
        assert not running or run.result()
        assert await lost(sandbox.run_python("pass"))
        await sandbox.close()
        async with await backend.create(timeout_s=10) as other:
            assert (await other.run_python("print(1)")).stdout == b"1\n"
        assert (backend.stats().lost, backend.stats().respawns) == (1, 1)
        assert outer not in outer_processes()

    play(scenario, slots=1)


def test_a_slot_whose_death_the_next_run_is_first_to_meet_is_lost():
    async def scenario(backend):
        sandbox = await backend.create()
        (outer,) = outer_processes()
        doomed = [outer, *children(outer)]
        assert (await sandbox.run_python("pass")).ok  # and now it owes the slot a request
        os.kill(outer, signal.SIGKILL)
        block_until_ended(doomed)  # without a turn of the event loop, which would notice
        assert await lost(sandbox.run_python("pass"))
        await sandbox.close()

    play(scenario, slots=1)


def block_until_ended(pids: list[int]) -> None:
    while not all(map(ended, pids)):
        time.sleep(0.01)


def ended(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


async def lost(use: Awaitable[object]) -> bool:
    try:
        await use
    except SandboxLost:
        return True
    return False


def test_a_session_of_a_slot_that_is_killed_is_lost():
    async def scenario(backend):
        sandbox = await backend.create()
        session = await sandbox.open_session()
        fork = await session.fork()
        async with asyncio.TaskGroup() as tasks:
            cells = [tasks.create_task(lost(one.run(HANG))) for one in (session, fork)]
            await asyncio.sleep(0.1)
            os.kill(children(outer_processes()[0])[0], signal.SIGKILL)
        assert [cell.result() for cell in cells] == [True, True]
        assert await lost(session.run("1"))
        await sandbox.close()

    play(scenario, slots=1)


def test_a_free_slot_that_dies_is_not_handed_out():
    async def scenario(backend):
        for outer in outer_processes():
            os.kill(children(outer)[0], signal.SIGKILL)
        async with await backend.create() as sandbox:
            first = await lost(sandbox.run_python("pass"))
        await until(lambda: backend.stats().respawns == 2)
        async with await backend.create() as sandbox:
            assert (await sandbox.run_python("pass")).ok
        assert backend.stats().lost == first

    play(scenario)


def test_a_slot_that_dies_on_its_way_to_a_caller_is_not_handed_out():
    async def scenario(backend):
        held = await backend.create()
        waiting = asyncio.create_task(backend.create())
        await asyncio.sleep(0)
        await held.close()  # the slot is the caller's now, who has not run yet
        held.slot.close("killed by the test")
        sandbox = await waiting
        assert (await sandbox.run_python("pass")).ok
        await sandbox.close()
        assert (backend.stats().lost, backend.stats().respawns) == (0, 1)

    play(scenario, slots=1)


def test_a_run_that_waits_as_its_sandbox_is_closed_does_not_run_in_the_next_one():
    async def scenario(backend):
        sandbox = await backend.create()
        await sandbox.run_python("pass")  # no process waits now
        async with asyncio.TaskGroup() as tasks:
            late = tasks.create_task(lost(sandbox.run_python("open('f', 'w'); print(1)")))
            await asyncio.sleep(0)
            await sandbox.close()
            other = await backend.create()
        assert late.result()
        assert await other.list_files() == {}
        assert (await other.run_python("print(2)")).stdout == b"2\n"

    play(scenario, slots=1)


def test_a_run_that_ends_as_its_sandbox_is_closed_prepares_nothing_for_the_next_one():
    async def scenario(backend):
        sandbox = await backend.create()
        child = await sandbox.slot.ready()
        sandbox.slot.fresh(8)
        sandbox.slot.release(child)
        await sandbox.slot.ready()
        await asyncio.sleep(0.1)
        assert sandbox.slot.child is None  # it would be counted as a process left over

    play(scenario, slots=1)


WHOM = {"process 1": lambda outer: children(outer)[0], "the outer process": lambda outer: outer}


@cases("whom", WHOM)
@cases("wall_s", [0.2, 60.0])
def test_a_frozen_slot_is_lost_long_before_its_program_is_late(whom, wall_s, caplog):
    """A run that has no answer in time is no `timeout`: a verdict would be a guess."""

    async def scenario(backend):
        (outer,) = outer_processes()
        sandbox = await backend.create()
        await sandbox.list_files()  # a process waits
        os.kill(WHOM[whom](outer), signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(SandboxLost, match=r"is frozen: its process \d+ was stopped"):
            await sandbox.run_python(HANG, limits=Limits(wall_s=wall_s))
        assert time.monotonic() - start < 30  # a hang is 60
        await sandbox.close()
        async with await backend.create(timeout_s=10) as other:
            assert (await other.run_python("pass")).ok
        assert backend.stats().lost == 1
        await until(lambda: not Path(f"/proc/{outer}").exists())

    play(scenario, slots=1, limits=Limits(wall_s=60))
    assert "sandbox slot 0 is lost: it is frozen" in caplog.text


def test_frozen_slots_that_nobody_uses_are_replaced():
    async def scenario(backend):
        stopped = outer_processes()
        for outer in stopped:
            os.kill(children(outer)[0], signal.SIGSTOP)
        await until(lambda: backend.stats().respawns == 2)
        assert not set(stopped) & set(outer_processes())

    play(scenario, slots=2)


def test_a_cell_in_a_frozen_slot_is_lost_too():
    async def scenario(backend):
        (outer,) = outer_processes()
        async with await backend.create() as sandbox:
            session = await sandbox.open_session()
            assert (await session.run("print(1)")).stdout == b"1\n"
            os.kill(children(outer)[0], signal.SIGSTOP)
            with pytest.raises(SandboxLost, match="is frozen"):
                await session.run(HANG, timeout_s=0.2)

    play(scenario, slots=1)


def test_a_program_that_stops_itself_freezes_no_slot():
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"

    async def scenario(backend):
        async with await backend.create() as sandbox:
            result = await sandbox.run_python(code, limits=Limits(wall_s=2.5))
            assert (result.status, result.state_lost) == (Status.TIMEOUT, False)
        assert (backend.stats().lost, backend.stats().respawns) == (0, 0)

    play(scenario, slots=1)


def test_a_slot_is_replaced_after_so_many_programs():
    async def scenario(backend):
        (first,) = outer_processes()
        for _ in range(5):
            async with await backend.create() as sandbox:
                assert (await sandbox.run_python("pass")).ok
        await until(lambda: backend.stats().respawns == 1)
        assert first not in outer_processes()
        assert backend.stats().lost == 0

    play(scenario, slots=1, max_executions=5)


# ---------------------------------------------------------------------- limits and options
def test_each_sandbox_has_limits_of_its_own():
    code = "import os; s = os.statvfs('.'); print(s.f_blocks * s.f_frsize >> 20)"

    async def scenario(backend):
        for disk_mb in (8, 64, 128, 8):
            limits = Limits(disk_mb=disk_mb, memory_mb=100 + disk_mb)
            async with await backend.create(limits=limits) as sandbox:
                assert sandbox.limits == limits
                assert (await sandbox.run_python(code)).stdout == b"%d\n" % disk_mb
        async with await backend.create() as sandbox:
            assert (await sandbox.run_python(code)).stdout == b"64\n"

    play(scenario, slots=1)


@cases(
    "options",
    [{"slots": -1}, {"max_executions": 0}, {"cgroup": "maybe"}, {"require": ["speed"]}],
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(ConfigError, match=r"expected|no capability"):
        LocalBackend(**options)


def test_what_is_required_and_missing_keeps_it_from_starting():
    async def scenario(backend):
        raise AssertionError("it started")

    with pytest.raises(SandboxUnavailable, match="`require` asks for: total_memory"):
        play(scenario, cgroup="off", require=["exec", "total_memory"])
    assert outer_processes() == []


@cases("python", ["/no/such/python", "/bin/false"])
def test_an_interpreter_that_does_not_run_keeps_it_from_starting(python):
    with pytest.raises(SandboxUnavailable, match=f"'{python}' does not run"):
        play(lambda backend: asyncio.sleep(0), python=python)


def test_a_backend_opens_again_and_not_twice():
    from agentgym_rl.core import SandboxError

    async def run():
        backend = LocalBackend(slots=1)
        for _ in range(2):
            async with backend:
                async with await backend.create() as sandbox:
                    assert (await sandbox.run_python("pass")).ok
                with pytest.raises(SandboxError, match="open already"):
                    await backend.__aenter__()
            with pytest.raises(SandboxLost, match="not open"):
                await backend.create()

    asyncio.run(run())


@pytest.mark.slow
def test_the_event_loop_is_free_while_programs_run():
    """Where it waited for a program, it would go round a few times for each of them."""
    ticks, num_programs = 0, 10

    async def ticker():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    async def worker(backend):
        for _ in range(num_programs):
            async with await backend.create() as sandbox:
                await sandbox.run_python("import time; time.sleep(0.1)", collect=["."])

    async def scenario(backend):
        ticking = asyncio.create_task(ticker())
        async with asyncio.TaskGroup() as tasks:
            for _ in range(16):
                tasks.create_task(worker(backend))
        ticking.cancel()

    play(scenario, slots=16)
    assert ticks > 20 * num_programs


def test_limits_of_a_sandbox_may_be_looser_than_the_defaults():
    async def scenario(backend):
        limits = dataclasses.replace(Limits(), memory_mb=1024)
        async with await backend.create(limits=limits) as sandbox:
            assert (await sandbox.run_python("x = bytearray(700 << 20)")).ok
        async with await backend.create() as sandbox:
            result = await sandbox.run_python("x = bytearray(700 << 20)")
            assert result.status is Status.MEMORY_LIMIT

    play(scenario, slots=1)
