"""An environment of one's own: say a number back. Two tries; the second says what went wrong.

PYTHONPATH=examples arl train --env own_env:Echo --agent single_turn --steps 10
"""

import random

from agentgym_rl import Env, Step


class Echo(Env):
    """Reward 1 when the reply holds the asked number, half of it on the second try."""

    async def reset(self, *, seed=None, options=None):
        task = (options or {}).get("task")  # the problem to play, when a runner gives one
        self.number = str(random.Random(task.seed if task else seed).randint(10, 99))
        self.tries = 0
        return [{"role": "user", "content": f"Say the number {self.number}."}], {}

    async def step(self, action):
        self.tries += 1
        right = self.number in (action.get("content") or "")
        if right or self.tries == 2:
            return Step([], right / self.tries, terminated=True, truncated=False, info={})
        again = [{"role": "user", "content": f"No: say {self.number}."}]
        return Step(again, 0.0, terminated=False, truncated=False, info={})
