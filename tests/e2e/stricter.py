"""The math environment with a verifier that has changed its mind about even answers."""

from arl_envs.math.env import MathEnv


class OddOnly(MathEnv):
    async def step(self, action):
        answer = self._task.data["answer"] if self._task else "1"
        step = await super().step(action)
        return step._replace(reward=0.0) if step.terminated and int(answer) % 2 == 0 else step
