"""An environment's handle, and the run that gives it a pool."""

import asyncio

import pytest
from arl_verifier.pool import ProcessPool

from agentgym_rl import Env, Step, SyncEnv, make
from agentgym_rl.core import ConfigError
from agentgym_rl.gym import Verifier, to_async


def test_a_pool_that_is_given_stays_its_owner_s():
    async def main():
        async with ProcessPool(1) as pool:
            handle = Verifier(pool)
            first = await handle.call("judges:pid")
            await handle.close()
            return first.value == (await pool.call("judges:pid")).value

    assert asyncio.run(main())


def test_its_own_pool_starts_once_at_the_first_call_and_ends():
    async def main():
        handle = Verifier(timeout_s=20)
        await handle.close()  # nothing there yet
        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(handle.call("judges:pid")) for _ in range(5)]
        again = await handle.call("judges:pid")
        await handle.close()
        await handle.close()
        anew = (await handle.call("judges:pid")).value
        await handle.close()
        return {call.result().value for call in calls} | {again.value}, anew

    pids, anew = asyncio.run(main())
    assert len(pids) == 1
    assert anew not in pids


def test_a_handle_can_require_isolation():
    async def main():
        handle = Verifier(isolated=False)
        try:
            with pytest.raises(ConfigError, match="cannot hold back exec"):
                await handle.require("exec")
        finally:
            await handle.close()

    asyncio.run(main())


class Judged(Env):
    """The reply's two numbers have the sum 5, a verifier finds."""

    uses_verifier = True

    async def reset(self, *, seed=None, options=None):
        self.handle = Verifier((options or {}).get("verifier"))
        return [{"role": "user", "content": "Two numbers, sum 5."}], {}

    async def step(self, action):
        called = await self.handle.call("judges:add", 2, 3)
        return Step([], float(called.value == 5), True, False, {"verifier": called.status})

    async def close(self):
        await self.handle.close()


class JudgedSync(SyncEnv):
    uses_verifier = True

    def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": "x"}], {}

    def step(self, action):
        return Step([], 0.0, True, False, {})


def test_wrappers_and_sync_environments_say_it_too():
    assert make(f"{__name__}:Judged").uses_verifier
    assert to_async(JudgedSync()).uses_verifier
    assert not make("math").uses_verifier


def test_an_environment_alone_has_a_pool_of_its_own():
    async def main():
        env = make(f"{__name__}:Judged")
        try:
            await env.reset(seed=1)
            return await env.step({"role": "assistant", "content": "2 3"})
        finally:
            await env.close()

    assert asyncio.run(main()).reward == 1.0
