"""Another reward than the environment's own."""

from __future__ import annotations

from collections.abc import Callable

from agentgym_rl.env import Env, Message, Step
from agentgym_rl.loading import import_object

from .wrapper import Wrapper

RewardFunction = Callable[[Step], float]


class TransformReward(Wrapper):
    """Pays `function(step)` for a step; `function` may be "module:function".

    What the environment paid stays in `info["reward_components"]["unshaped"]`.
    """

    def __init__(self, env: Env, function: RewardFunction | str) -> None:
        super().__init__(env)
        self._function: RewardFunction = (
            import_object(function) if isinstance(function, str) else function
        )

    async def step(self, action: Message) -> Step:
        step = await self.env.step(action)
        components = {**step.info.get("reward_components", {}), "unshaped": step.reward}
        return step._replace(
            reward=float(self._function(step)), info={**step.info, "reward_components": components}
        )
