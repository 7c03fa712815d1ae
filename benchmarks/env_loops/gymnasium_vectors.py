"""gymnasium's vector environments, which step all episodes together: sync, or a process each."""

from __future__ import annotations

import contextlib
import string
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .worker import TURNS, Case, serve

LETTERS = f"{string.ascii_lowercase} "


def _cases(kind: str) -> Mapping[str, Case]:
    import gymnasium as gym
    from gymnasium.spaces import Text

    class Echo(gym.Env[str, str]):
        def __init__(self) -> None:
            self.observation_space = self.action_space = Text(64, charset=LETTERS)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict]:
            super().reset(seed=seed)
            return "say something", {}

        def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
            return action, 0.0, False, False, {}

    gym.register("Echo-v0", Echo, max_episode_steps=TURNS)
    vector: Any = {"sync": gym.vector.SyncVectorEnv, "async": gym.vector.AsyncVectorEnv}[kind]

    def case(make: Callable[[], Any], actions: list[Any]) -> Case:
        @contextlib.contextmanager
        def opened(live: int) -> Iterator[Callable[[], int]]:
            envs = vector([make] * live)
            taken = [[action] * live for action in actions]
            envs.reset()

            def play() -> int:
                for together in taken:
                    envs.step(together)
                envs.step(taken[0])  # which only resets those that have ended
                return live * TURNS

            yield play
            envs.close()

        return opened

    lake: Callable[[], Any] = lambda: gym.make(  # noqa: E731
        "FrozenLake-v1", is_slippery=False, max_episode_steps=TURNS
    )
    return {
        "echo": case(lambda: gym.make("Echo-v0"), ["hello"] * TURNS),
        "FrozenLake": case(lake, [2, 0] * (TURNS // 2)),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve("gymnasium", lambda: _cases(sys.argv[1]))
