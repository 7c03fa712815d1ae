"""An environment with slow tasks, and an agent that fails (tests/e2e puts this on the path)."""

import asyncio
import time
from pathlib import Path

from arl_envs.math.env import MathEnv

from agentgym_rl import Agent

TIMEOUT_S = 60.0


class Straggler(MathEnv):
    """The third task and the eleventh take `steps` training steps of their run longer than others.

    They wait for steps, not for seconds: what is stale depends on how fast the machine trains.
    With more of them the others would not fill the batches that they wait for.
    """

    def __init__(self, *, metrics: str, steps: int) -> None:
        super().__init__()
        self.metrics, self.steps = Path(metrics), steps
        self.slow = False

    @classmethod
    def task_source(cls, split, *, seed, **options):
        return super().task_source(split, seed=seed)

    async def reset(self, *, seed=None, options=None):
        first = await super().reset(seed=seed, options=options)
        self.slow = options["task"].id.endswith(("-2", "-10"))
        return first

    def _trained(self) -> int:
        return len(self.metrics.read_text().splitlines()) if self.metrics.exists() else 0

    async def step(self, action):
        if self.slow:
            self.slow = False
            until, end = self._trained() + self.steps, time.monotonic() + TIMEOUT_S
            while self._trained() < until:
                assert time.monotonic() < end, f"no {self.steps} steps in {TIMEOUT_S} s"
                await asyncio.sleep(0.1)
        return await super().step(action)


class Held(MathEnv):
    """Only the first groups of its run are played until more are admitted: a run is not over before
    a test has done what it does meanwhile, however busy the machine is.

    The file `admitted` has their number; without the file all are played.
    """

    TIMEOUT_S = 240.0
    step_timeout_s = 2 * TIMEOUT_S

    def __init__(self, *, admitted: str) -> None:
        super().__init__()
        self.admitted = Path(admitted)

    @classmethod
    def task_source(cls, split, *, seed, **options):
        return super().task_source(split, seed=seed)

    def _may_begin(self, index: int) -> bool:
        return not self.admitted.exists() or index < int(self.admitted.read_text())

    async def reset(self, *, seed=None, options=None):
        index = int(options["task"].id.rpartition("-")[2])
        async with asyncio.timeout(self.TIMEOUT_S):
            while not self._may_begin(index):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return await super().reset(seed=seed, options=options)


class Broken(Agent):
    async def run(self, env, client, *, model, task):
        raise RuntimeError("this agent is broken")
