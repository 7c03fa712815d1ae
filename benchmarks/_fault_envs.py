"""The environments that are played while a run is broken (benchmarks/faults.py).

Some have a call that never returns, once, after it was requested by a file `hang` in the folder
ARL_FAULT_DIR. Others pay every episode in full, so a lower reward shows a failure of
infrastructure.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arl_envs.code.generated import solution_of, submission
from arl_envs.math.env import MathEnv

from agentgym_rl import Agent
from agentgym_rl.core import Message, Split, TaskSource
from agentgym_rl.gym import Step

FOLDER = Path(os.environ.get("ARL_FAULT_DIR", "."))


def _say(name: str) -> None:
    """Write a file, atomically, as a signal to the benchmark."""
    part = FOLDER / f"{name}.part"
    part.write_text(repr(time.monotonic()))
    part.rename(FOLDER / name)


def _asked() -> bool:
    """Return whether a fault was requested; each request is for one call."""
    try:
        (FOLDER / "hang").unlink()
    except FileNotFoundError:
        return False
    return True


class _Hangs(MathEnv):
    _hangs = False

    async def _maybe_hang(self) -> None:
        if not _asked():
            return
        self._hangs = True
        _say("hung")
        await asyncio.Event().wait()

    async def close(self) -> None:
        if self._hangs:
            self._hangs = False
            _say("found")
        await super().close()


class HangingTool(_Hangs):
    """An environment with a step that never returns."""

    async def step(self, action: Message) -> Step:
        await self._maybe_hang()
        return await super().step(action)


class HangingEnv(_Hangs):
    """An environment with a reset that never returns."""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        await self._maybe_hang()
        return await super().reset(seed=seed, options=options)


class Submits(Agent):
    """An agent of the environment `code` that samples a reply and then submits the right

    program. On request it first tries a program that stops itself.
    """

    async def run(self, env: Any, client: Any, *, model: str, task: Any) -> None:
        messages, _ = await env.reset()
        await client.chat.completions.create(model=model, messages=messages)
        if _asked():
            await env.step(_STOPS)
            _say("found")
        await env.step(submission(solution_of(task)))


_STOPS: Message = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "c",
            "type": "function",
            "function": {
                "name": "python",
                "arguments": '{"code": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"}',
            },
        }
    ],
}


def right(number: int) -> int:
    """Return the answer that the verifier pool has to compute."""
    return 7 * number


class Judged(MathEnv):
    """An environment that pays any reply if the verifier pool computes 6 times 7.

    Args:
        fresh: Use a new worker for each call, which has to be forked: existing workers do not need
            the fork server. If false, workers are reused.
    """

    def __init__(self, *, fresh: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.uses_verifier = True
        self._fresh = fresh

    @classmethod
    def task_source(
        cls, split: Split, *, seed: int, fresh: bool = True, **options: Any
    ) -> TaskSource:
        return super().task_source(split, seed=seed, **options)

    async def step(self, action: Message) -> Step:
        target = "benchmarks._fault_envs:right"
        called = await self._verifier.call(target, 6, fresh=self._fresh)
        return Step([], float(called.value == 42), True, False, {})
