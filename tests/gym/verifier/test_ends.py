"""Calls that do not return, workers that die or lie, callers that go away."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import uvloop
from arl_verifier.pool import ProcessPool

from agentgym_rl.core import VerifierError
from agentgym_rl.gym import VerifierStats
from tests.kit.cases import cases

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_hang_is_killed_in_time_and_tried_once_more(runner):
    async def main():
        async with ProcessPool(1, timeout_s=0.5) as pool:
            await pool.call("judges:pid")
            start = time.monotonic()
            called = await pool.call("judges:hang")
            took = time.monotonic() - start
            return called, took, (await pool.call("judges:add", 1, 2)).value, pool.stats()

    called, took, after, stats = runner(main())
    assert (called.status, called.attempts, after) == ("timeout", 2, 3)
    assert called.error == "no answer in 0.5 s"
    assert took >= 1.0
    assert (stats.timeouts, stats.retries, stats.workers) == (1, 1, 3)


def test_a_call_can_have_a_deadline_of_its_own():
    async def main():
        async with ProcessPool(1, timeout_s=60) as pool:
            return await pool.call("judges:sleep", 60, timeout_s=0.1)

    assert asyncio.run(main()).error == "no answer in 0.1 s"


def test_a_second_attempt_can_succeed(tmp_path):
    async def main():
        async with ProcessPool(1, timeout_s=1.0, isolated=False) as pool:
            return await pool.call("judges:hang_the_first_time", str(tmp_path / "been"))

    called = asyncio.run(main())
    assert (called.status, called.value, called.attempts) == ("done", "second", 2)


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_an_answer_in_time_counts_though_the_loop_comes_late(runner):
    async def main():
        async with ProcessPool(1, timeout_s=0.3) as pool:
            await pool.call("judges:pid")
            async with asyncio.TaskGroup() as tasks:
                call = tasks.create_task(pool.call("judges:big", 300_000))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                time.sleep(0.6)  # noqa: ASYNC251 - somebody blocks the loop
            return call.result()

    called = runner(main())
    assert (called.status, called.attempts) == ("done", 1)


CRASHES = {
    "signal": (("crash", int(signal.SIGSEGV)), "killed by SIGSEGV"),
    "abort": (("crash", int(signal.SIGABRT)), "killed by SIGABRT"),
    "null": (("deep",), "killed by SIGSEGV"),
    "exit": (("leave", 3), "exit code 3"),
    "exit_0": (("leave", 0), "exit code 0"),
    "hang_up": (("hangs_up",), "killed by SIGKILL"),
    "ahead": (("answers_ahead",), ""),
    "babble": (("babbles",), "it sent too much"),
    "nonsense": (("answers_nonsense",), "out of turn, or no answer at all"),
}


@cases("call, said", CRASHES.values(), ids=CRASHES)
def test_a_worker_that_dies_or_lies_is_a_crash(call, said):
    async def main():
        async with ProcessPool(1) as pool:
            name, *args = call
            return await pool.call(f"judges:{name}", *args), await pool.call("judges:add", 1, 2)

    called, after = asyncio.run(main())
    assert (called.status, called.value, called.attempts) == ("crash", None, 2)
    assert said in called.error
    assert after.value == 3


def test_memory_is_bounded():
    async def main():
        async with ProcessPool(1, memory_mb=256) as pool:
            return [await pool.call("judges:fill_memory", mb) for mb in (64, 1024, 64)]

    fits, too_much, again = asyncio.run(main())
    assert (fits.value, again.value) == (64 << 20, 64 << 20)
    assert (too_much.status, too_much.error, too_much.attempts) == ("memory", "MemoryError", 2)


def test_an_alarm_left_behind_harms_nobody():
    async def main():
        async with ProcessPool(1) as pool:
            first = await pool.call("judges:leaves_an_alarm")
            await asyncio.sleep(0.2)
            return first.value, (await pool.call("judges:pid")).value

    first, second = asyncio.run(main())
    assert first == second


def test_a_dead_fork_server_is_replaced_and_counts_against_no_call():
    async def main():
        async with ProcessPool(1) as pool:
            pid = (await pool.call("judges:pid")).value
            async with asyncio.TaskGroup() as tasks:
                call = tasks.create_task(pool.call("judges:sleep", 0.5))
                await asyncio.sleep(0.1)
                os.kill(_parent(pid), signal.SIGKILL)
            return call.result(), await pool.call("judges:add", 1, 2)

    called, after = asyncio.run(main())
    assert (called.status, called.attempts, after.value) == ("done", 1, 3)


def test_a_frozen_fork_server_is_replaced_before_anybody_needs_it(caplog):
    async def main():
        async with ProcessPool(1) as pool:
            server = _parent((await pool.call("judges:pid")).value)
            start = time.monotonic()
            os.kill(server, signal.SIGSTOP)
            while pool._crew._server._process.pid == server:
                assert time.monotonic() - start < 60
                await asyncio.sleep(0.05)
            return await pool.call("judges:add", 1, 2, fresh=True)

    called = asyncio.run(main())
    assert (called.status, called.value, called.attempts) == ("done", 3, 1)
    assert "the process that forks the workers was frozen" in caplog.text


def test_a_frozen_worker_is_replaced_and_its_call_tried_again(caplog):
    async def main():
        async with ProcessPool(1, timeout_s=60.0) as pool:
            pid = (await pool.call("judges:pid")).value
            async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
                call = tasks.create_task(pool.call("judges:sleep", 0.5))
                await asyncio.sleep(0.1)
                os.kill(pid, signal.SIGSTOP)
            return pid, call.result()

    pid, called = asyncio.run(main())
    assert (called.status, called.attempts) == ("done", 2)
    assert f"a verifier worker (pid {pid}) is replaced: it was frozen" in caplog.text


def test_fork_servers_that_keep_dying_are_an_error():
    async def main():
        async with ProcessPool(1) as pool:
            await pool.call("judges:pid")
            for _ in range(100):
                pool._crew._server._process.kill()
                await asyncio.sleep(0.01)
            await pool.call("judges:pid")

    with pytest.raises(VerifierError, match="times in a row"):
        asyncio.run(main())


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


# ---------------------------------------------------------------- nothing is left
def processes() -> set[int]:
    """Those below this one, all generations."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parents[int(name)] = _parent(int(name))
            except OSError:
                continue
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))


async def cancel_at_random(pool: ProcessPool, count: int, seed: int) -> list[str]:
    """`count` calls, half of them cancelled at some point; those that were answered wrongly."""
    luck, wrong = random.Random(seed), []

    async def one(n: int) -> None:
        answer = await pool.call("judges:slow_echo", luck.random() * 0.004, n)
        if answer.value != n:
            wrong.append(f"{n}: {answer}")

    async with asyncio.TaskGroup() as tasks:
        for n in range(count):
            call = tasks.create_task(one(n))
            if n % 2:
                asyncio.get_running_loop().call_later(luck.random() * 0.02, call.cancel)
            if n % 20 == 0:
                await asyncio.sleep(0.01)
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_random_cancellations_leave_nothing(runner):
    async def main() -> tuple[list[str], VerifierStats, int]:
        async with ProcessPool(2) as pool:
            wrong = await cancel_at_random(pool, 20, seed=0)
            open_before = handles()
            wrong += await cancel_at_random(pool, 2000, seed=1)
            assert (await pool.call("judges:echo", 1)).value == [1]
            return wrong, pool.stats(), handles() - open_before

    runner(asyncio.sleep(0))  # what the loop itself opens once and keeps
    before = handles(), processes()
    wrong, stats, more = runner(main())
    assert wrong == []
    assert stats.cancelled >= 500
    assert more <= 4  # two workers that were just started, two handles each
    assert (handles(), processes()) == before


def test_a_caller_that_goes_takes_its_worker_along():
    async def main():
        async with ProcessPool(1) as pool:
            await pool.call("judges:pid")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await pool.call("judges:hang")
            return await pool.call("judges:add", 1, 2), pool.stats()

    called, stats = asyncio.run(main())
    assert (called.value, called.attempts) == (3, 1)
    assert (stats.cancelled, stats.calls) == (1, 2)


@pytest.mark.parametrize(("isolated", "function"), [(True, "hang"), (False, "hang_with_a_child")])
def test_closing_leaves_nothing(isolated, function):
    async def main():
        async with ProcessPool(2, isolated=isolated) as pool, asyncio.timeout(30):
            await pool.call("judges:pid")
            task = asyncio.ensure_future(pool.call(f"judges:{function}"))
            await asyncio.sleep(0.5)
            assert len(processes() - before[1]) >= (3 if isolated else 4)
        with pytest.raises(VerifierError):
            await task

    before = handles(), processes()
    asyncio.run(main())
    assert _settled(before[1])
    assert handles() == before[0]


def _settled(before: set[int]) -> bool:
    """Whether all further processes are gone, soon."""
    for _ in range(500):
        if processes() <= before:
            return True
        time.sleep(0.01)
    return False


PARENT = """
import asyncio, sys
from arl_verifier.pool import ProcessPool

async def main():
    async with ProcessPool(2) as pool, asyncio.TaskGroup() as tasks:
        pids = [(await pool.call("judges:pid")).value]
        for _ in range(2):
            tasks.create_task(pool.call("judges:hang", timeout_s=600))
        await asyncio.sleep(0.2)
        print(*pids, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


def test_nothing_outlives_a_parent_that_is_killed():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        family = {worker, _parent(worker)}
        parent.kill()
    assert _gone(family)


def _gone(pids: set[int]) -> bool:
    """Whether these are no more, soon; a zombie is no more."""
    for _ in range(500):
        if not any(_runs(pid) for pid in pids):
            return True
        time.sleep(0.01)
    return False


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
