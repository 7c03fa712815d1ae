"""The environment of the kept runs of earlier versions: a reply of an even length is paid 1."""

from agentgym_rl import Env, Step


class Parity(Env):
    async def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": f"{seed}?"}], {}

    async def step(self, action):
        reward = float(len(action.get("content") or "") % 2 == 0)
        return Step([], reward, True, False, {})
