"""gem's vector environments: in a loop, or on a pool of threads."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .worker import TURNS, Case, serve


def _cases(kind: str) -> Mapping[str, Case]:
    from gem.core import Env
    from gem.vector.async_vector_env import AsyncVectorEnv
    from gem.vector.sync_vector_env import SyncVectorEnv

    class Echo(Env):
        def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
            self.turns = 0
            return "say something", {}

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            self.turns += 1
            return action, 0.0, False, self.turns == TURNS, {}

    vector: Any = {"sync": SyncVectorEnv, "threads": AsyncVectorEnv}[kind]

    @contextlib.contextmanager
    def echo(live: int) -> Iterator[Callable[[], int]]:
        envs = vector(["echo"] * live, [Echo] * live)
        envs.reset()

        def play() -> int:
            for _ in range(TURNS):
                envs.step(["hello"] * live)
            return live * TURNS

        yield play
        if kind == "threads":
            envs.thread_pool_executer.shutdown()

    return {"echo": echo}


if __name__ == "__main__":
    serve("gem-llm", lambda: _cases(sys.argv[1]))
