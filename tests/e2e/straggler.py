"""An environment with slow tasks, and an agent that fails (tests/e2e puts this on the path)."""

import asyncio

from arl_envs.math.env import MathEnv

from agentgym_rl import Agent


class Straggler(MathEnv):
    """Every fifth task or so takes a second longer than the others, at its first step."""

    slow = False

    async def reset(self, *, seed=None, options=None):
        first = await super().reset(seed=seed, options=options)
        self.slow = options["task"].seed % 5 == 0
        return first

    async def step(self, action):
        if self.slow:
            self.slow = False
            await asyncio.sleep(4)
        return await super().step(action)


class Broken(Agent):
    async def run(self, env, client, *, model, task):
        raise RuntimeError("this agent is broken")
