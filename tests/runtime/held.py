"""A program of the tests: an environment's step that misbehaves, run as `arl` runs episodes.

python tests/runtime/held.py WAY
"""

import asyncio
import atexit
import contextlib
import os
import sys
import time

from agentgym_rl import Env, Step
from agentgym_rl.gym.wrappers import Timeout, within
from agentgym_rl.runtime import log, run_interruptible
from agentgym_rl.runtime.signals import leave_in_time


async def swallow():
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


async def refuse_to_close():
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.sleep(3600)


async def refuse_to_end():
    try:
        yield 1
    finally:
        await refuse_to_close()


class Sleeper:
    def __del__(self):
        time.sleep(3600)


def spin():
    while True:
        pass


class Held(Env):
    """Every `step` goes the way that the command line says."""

    async def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": "go"}], {}

    async def step(self, action):
        print("begun", flush=True)
        match sys.argv[1]:
            case "sleeps":
                time.sleep(3600)  # noqa: ASYNC251
            case "spins":
                spin()
            case "computes in C":
                (1 << 10**9) % 7**10_000_000
            case "sleeps again and again":
                while True:
                    time.sleep(1)  # noqa: ASYNC251
                    await asyncio.sleep(0)
            case "swallows":
                await swallow()
            case "refuses to close":
                await refuse_to_close()
            case "leaves a task":
                self.task = asyncio.get_running_loop().create_task(swallow())
                await asyncio.sleep(3600)
            case "leaves a task that catches everything":
                self.task = asyncio.get_running_loop().create_task(refuse_to_close())
                await asyncio.sleep(3600)
            case "leaves a generator":
                async for _ in refuse_to_end():
                    await asyncio.sleep(3600)
            case "sleeps at exit":
                atexit.register(time.sleep, 3600)
                await asyncio.sleep(3600)
            case "sleeps when it is deleted":
                sys.modules["held"] = Sleeper()
                await asyncio.sleep(3600)
            case "blocks a thread":
                await asyncio.to_thread(time.sleep, 3600)
            case "exits":
                os._exit(0)
        return Step([], 0.0, terminated=True, truncated=False, info={})


async def main():
    env = Timeout(Held(), 3600.0)
    await env.reset()
    await within(None, env.step({"role": "assistant", "content": ""}))


if __name__ == "__main__":
    log.setup()
    code = 0
    try:
        run_interruptible(main)
    except KeyboardInterrupt:
        code = 130
    leave_in_time(code)
    sys.exit(code)
