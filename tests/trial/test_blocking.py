"""Code that blocks the event loop: it is interrupted at the limit of its step, whatever it catches,
and the time that shorter blocks take is reported once."""

import asyncio
import json
import logging
import threading
import time

import pytest
from arl_trial.blocking import BlockWatch

from agentgym_rl import Env, Step, SyncEnv, ToolEnv, make, tool
from agentgym_rl.gym.wrappers import StepTimeout
from agentgym_rl.runtime import run_interruptible
from tests.kit.cases import cases


class Blocking(Env):
    """Blocks in `reset` or `step`, by its option `how`."""

    def __init__(self, how="sleep"):
        self.how = how

    async def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": "?"}], {}

    async def step(self, action):
        await getattr(self, self.how)()
        return Step([], 1.0, True, False, {})

    async def sleep(self):
        time.sleep(60)  # noqa: ASYNC251

    async def loop(self):
        while True:
            pass

    async def later(self):
        await asyncio.sleep(0)
        time.sleep(60)  # noqa: ASYNC251

    async def swallow(self):
        try:
            time.sleep(60)  # noqa: ASYNC251
        except Exception:
            return

    async def swallow_all(self):
        try:
            time.sleep(60)  # noqa: ASYNC251
        except BaseException:
            return

    async def swallow_all_later(self):
        await asyncio.sleep(0)
        await self.swallow_all()

    async def lock(self):
        threading.Event().wait()


class BlockingSync(SyncEnv):
    def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": "?"}], {}

    def __init__(self, wait_s=60.0):
        self.wait_s = wait_s

    def step(self, action):
        time.sleep(self.wait_s)
        return Step([], 1.0, True, False, {})


async def stepped(env, **options):
    env = make(env, step_timeout_s=0.5, **options)
    await env.reset(seed=1)
    with BlockWatch():
        return await env.step({"role": "assistant", "content": "4"})


@cases("how", ["sleep", "loop", "later", "swallow", "swallow_all", "swallow_all_later", "lock"])
def test_a_step_that_blocks_is_interrupted_and_never_pays(how):
    begun_s = time.monotonic()
    with pytest.raises(StepTimeout, match=r"(?s)test_blocking\.py, line .*asyncio\.to_thread"):
        run_interruptible(lambda: stepped(Blocking, how=how))
    assert time.monotonic() - begun_s < 30


def test_the_error_names_the_switch_of_a_sync_env():
    with pytest.raises(StepTimeout, match='executor = "thread" in BlockingSync'):
        run_interruptible(lambda: stepped(BlockingSync))


def test_the_next_step_of_the_same_environment_is_free_of_it():
    async def main():
        env = make(Blocking, step_timeout_s=0.5, how="swallow_all")
        with BlockWatch():
            for _ in range(2):
                await env.reset(seed=1)
                with pytest.raises(StepTimeout):
                    await env.step({"role": "assistant", "content": "4"})
            env.unwrapped.how = "close"  # pyright: ignore[reportAttributeAccessIssue]
            await env.reset(seed=1)
            return await env.step({"role": "assistant", "content": "4"})

    assert run_interruptible(main).reward == 1.0


class Slow(Blocking):
    async def wait(self):
        time.sleep(1.5)  # noqa: ASYNC251


def test_a_loop_in_another_thread_is_watched_without_interruptions():
    async def main():
        with BlockWatch():
            return await stepped(BlockingSync, wait_s=1.0)

    found = []

    def play():
        try:
            asyncio.run(main())
        except StepTimeout as error:
            found.append(str(error))

    thread = threading.Thread(target=play)
    thread.start()
    thread.join(60)
    assert "held the event loop for all of its 1." in found[0]


def test_short_blocks_are_reported_once_with_the_time_lost(caplog):
    async def main():
        env = make(Slow, how="wait", step_timeout_s=60.0)
        with BlockWatch():
            for _ in range(2):
                await env.reset(seed=1)
                await env.step({"role": "assistant", "content": "4"})
                await asyncio.sleep(0.3)

    with caplog.at_level(logging.WARNING):
        run_interruptible(main)
    (told,) = (text for text in caplog.messages if "held the event loop" in text)
    assert "tests/trial/test_blocking.py, line" in told
    assert "in wait has held the event loop for" in told
    assert told.endswith(f"{Slow.way_out}.")


def test_time_in_which_the_thread_had_no_cpu_is_not_lost_to_its_code(caplog):
    begun_s = time.monotonic()

    async def main():
        env = make(Slow, how="wait", step_timeout_s=60.0)
        with BlockWatch(queued_s=lambda pid, task: time.monotonic() - begun_s):
            await env.reset(seed=1)
            await env.step({"role": "assistant", "content": "4"})

    with caplog.at_level(logging.WARNING):
        run_interruptible(main)
    assert [text for text in caplog.messages if "held the event loop" in text] == []


class Calls(ToolEnv):
    def begin(self, task):
        return "?"

    @tool
    def look(self, wait_s: float) -> str:
        time.sleep(wait_s)
        return "seen"

    @tool
    async def rest(self) -> str:
        await asyncio.sleep(0)
        return "rested"


def message(*calls):
    functions = [{"name": name, "arguments": json.dumps(given)} for name, given in calls]
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": f"c{i}", "type": "function", "function": it} for i, it in enumerate(functions)
        ],
    }


async def called(*calls, limit_s=0.5):
    env = make(Calls, step_timeout_s=limit_s)
    await env.reset(seed=1)
    with BlockWatch():
        with pytest.raises(StepTimeout) as caught:
            await env.step(message(*calls))
        await env.reset(seed=1)
        step = await env.step(message(("rest", {}), ("rest", {})))
    return str(caught.value), [each["content"] for each in step.observation]


@cases("calls", [[("rest", {}), ("look", {"wait_s": 60})], [("look", {"wait_s": 0.4})] * 150])
def test_one_of_several_calls_that_blocks_is_interrupted(calls):
    begun_s = time.monotonic()
    said, after = run_interruptible(lambda: called(*calls))
    assert "test_blocking.py, line" in said
    assert "in look has blocked" in said
    assert after == ["rested", "rested"]
    assert time.monotonic() - begun_s < 30
