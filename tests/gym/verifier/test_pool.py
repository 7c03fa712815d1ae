"""What a call gives: of functions that return, raise, and return what cannot be said."""

import asyncio

import pytest
import uvloop
from arl_verifier.pool import ProcessPool

from agentgym_rl.core import ConfigError, VerifierError
from agentgym_rl.gym.verifier import Called
from tests.kit.cases import cases


def call(target: str, *args, calls: int = 1, runner=asyncio.run, **options) -> list[Called]:
    """One after the other, in a pool of one worker."""

    async def main():
        async with ProcessPool(1, **options) as pool:
            return [await pool.call(f"judges:{target}", *args) for _ in range(calls)]

    return runner(main())


@cases("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_function_returns(runner):
    (called,) = call("add", 2, 3, runner=runner)
    assert (called.status, called.value, called.error, called.attempts) == ("done", 5, "", 1)
    assert called.ms > 0


VALUES = {
    "plain": [None, True, -1, 1.5, "x", [], {"a": [1]}],
    "surrogate": ["\ud800 and \udfff", 1],
    "big_integer": [2**200, -(2**64)],
    "nul": ["\x00"],
    "long": ["x" * 500_000],
}


@cases("values", VALUES.values(), ids=VALUES)
def test_values_travel_unchanged(values):
    assert call("echo", *values)[0].value == values


def test_what_a_function_raises_is_told():
    (called,) = call("raises", "no such thing")
    assert (called.status, called.value, called.attempts) == ("error", None, 1)
    assert called.error.startswith("ValueError: no such thing (")
    assert "in raises" in called.error
    assert "verifier/inside" not in called.error


@cases(
    "function, said",
    [("exits", "SystemExit: I will not"), ("raises_unsayable", "Unsayable")],
)
def test_odd_exceptions_are_told_too(function, said):
    (called,) = call(function)
    assert called.status == "error"
    assert said in called.error


@cases(
    "function, args, said",
    [
        ("not_json", (), "not JSON: TypeError"),
        ("big", (20_000,), "more than 10000 (max_answer_bytes)"),
        ("nested", (100_000,), "not JSON: RecursionError"),
    ],
)
def test_what_cannot_be_returned_is_an_error(function, args, said):
    (called,) = call(function, *args, max_answer_bytes=10_000)
    assert (called.status, called.attempts) == ("error", 1)
    assert said in called.error


def test_an_argument_that_is_not_json_is_refused():
    with pytest.raises(TypeError):
        call("echo", object())


@cases(
    "target, said",
    [
        ("judges:nothing", "no attribute 'nothing'"),
        ("judges:NOTHING", "it is no function but a NoneType"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("judges", "module:function, got 'judges'"),
        ("broken_module:f", "ZeroDivisionError"),
    ],
)
def test_a_function_that_is_not_there_is_a_mistake(target, said, tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)

    async def main():
        async with ProcessPool(1) as pool:
            with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
                await pool.call(target)
            assert (await pool.call("judges:add", 1, 1)).value == 2

    asyncio.run(main())


def test_a_module_that_ends_the_importing_process_is_a_mistake(tmp_path, monkeypatch):
    (tmp_path / "deadly_module.py").write_text("import os\nos._exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)

    async def main():
        async with ProcessPool(1) as pool:
            assert (await pool.call("judges:add", 1, 1)).value == 2
            with pytest.raises(ConfigError, match="the process that forks the workers died"):
                await pool.call("deadly_module:f")
            assert (await pool.call("judges:add", 1, 1)).value == 2

    asyncio.run(main())


def test_an_import_has_a_deadline(tmp_path, monkeypatch):
    (tmp_path / "slow_module.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.syspath_prepend(tmp_path)

    async def main():
        async with ProcessPool(1, load_timeout_s=1, preload=["judges:add"]) as pool:
            with pytest.raises(ConfigError, match="importing it took more than 1 s"):
                await pool.call("slow_module:f")
            assert (await pool.call("judges:add", 1, 1)).value == 2

    asyncio.run(main())


def test_importing_takes_nothing_of_a_call_s_deadline(tmp_path, monkeypatch):
    (tmp_path / "late_module.py").write_text("import time\ntime.sleep(1)\ndef f(): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    async def main():
        async with ProcessPool(1, timeout_s=0.5) as pool:
            return await pool.call("late_module:f")

    called = asyncio.run(main())
    assert (called.status, called.attempts) == ("done", 1)


def test_what_is_printed_goes_nowhere(capfd):
    assert call("prints")[0].value == "said"
    assert capfd.readouterr() == ("", "")


def test_threads_are_allowed():
    assert call("threads")[0].value == [42]


def test_two_hundred_at_once_get_their_own_answers():
    async def main():
        async with ProcessPool(2) as pool, asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(pool.call("judges:echo", n)) for n in range(200)]
        return [task.result().value for task in calls], pool.stats()

    values, stats = asyncio.run(main())
    assert values == [[n] for n in range(200)]
    assert (stats.calls, stats.workers) == (200, 2)
    assert 0 < stats.queue_max_s <= stats.queue_s


def test_calls_are_served_in_the_order_they_came():
    async def main():
        done = []

        async def one(n):
            await pool.call("judges:echo", n)
            done.append(n)

        async with ProcessPool(1) as pool, asyncio.TaskGroup() as tasks:
            for n in range(50):
                tasks.create_task(one(n))
        return done

    assert asyncio.run(main()) == list(range(50))


def test_workers_work_side_by_side(tmp_path):
    async def main():
        async with (
            ProcessPool(2, timeout_s=60, isolated=False) as pool,
            asyncio.TaskGroup() as tasks,
        ):
            calls = [
                tasks.create_task(pool.call("judges:meet", str(tmp_path), name)) for name in "ab"
            ]
            pids = [tasks.create_task(pool.call("judges:pid")) for _ in range(2)]
        return [task.result().value for task in calls], {task.result().status for task in pids}

    assert asyncio.run(main()) == (["met", "met"], {"done"})


def test_isolated_workers_work_side_by_side():
    """One is busy for an hour while the other answers."""

    async def main():
        async with ProcessPool(2, timeout_s=60) as pool, asyncio.TaskGroup() as tasks:
            busy = tasks.create_task(pool.call("judges:sleep", 3600))
            pids = [await pool.call("judges:pid") for _ in range(2)]
            is_busy = not busy.done()
            busy.cancel()
        return is_busy, {called.status for called in pids}, pool.stats().queue_max_s

    is_busy, statuses, queue_max_s = asyncio.run(main())
    assert is_busy
    assert statuses == {"done"}
    assert queue_max_s < 60, "a call waited until the busy one had its timeout"


def test_workers_are_replaced_after_so_many_calls():
    counts = [called.value for called in call("counted", calls=7, max_calls=3)]
    assert counts == [1, 2, 3, 1, 2, 3, 1]


def test_fresh_calls_share_no_worker():
    async def main():
        async with ProcessPool(2) as pool:
            used = [await pool.call("judges:counted") for _ in range(3)]
            fresh = [await pool.call("judges:counted", fresh=True) for _ in range(5)]
            return [called.value for called in used], [called.value for called in fresh]

    used, fresh = asyncio.run(main())
    assert max(used) >= 2  # three calls of two workers, in whichever order these became free
    assert fresh == [1] * 5


def test_a_queue_has_a_deadline_of_its_own():
    async def main():
        preload = ["judges:sleep", "judges:pid"]
        async with ProcessPool(1, preload=preload) as pool, asyncio.TaskGroup() as tasks:
            await pool.call("judges:pid")
            pool._queue_timeout_s = 0.1  # the first call waited for the start of the worker
            first = tasks.create_task(pool.call("judges:sleep", 1))
            await asyncio.sleep(0)
            with pytest.raises(VerifierError, match=r"no verifier worker was free for 0\.1 s"):
                await pool.call("judges:pid")
        return first.result().status

    assert asyncio.run(main()) == "done"


def test_a_pool_that_is_not_running_says_so():
    pool = ProcessPool()
    with pytest.raises(VerifierError, match="is not running"):
        asyncio.run(pool.call("judges:echo"))


def test_calls_in_flight_fail_when_the_pool_is_closed():
    async def main():
        pool = ProcessPool(1)
        async with asyncio.TaskGroup() as tasks, pool:
            await pool.call("judges:echo")
            calls = [tasks.create_task(failing(pool)) for _ in range(3)]
            await asyncio.sleep(0.1)
        return [task.result() for task in calls]

    async def failing(pool):
        with pytest.raises(VerifierError, match="was closed") as caught:
            await pool.call("judges:sleep", 60)
        return caught.type

    assert asyncio.run(main()) == [VerifierError] * 3
