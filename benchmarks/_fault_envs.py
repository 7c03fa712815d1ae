"""What is played while a run is broken (benchmarks/faults.py).

Some calls never return, once, as soon as somebody asks for it: the folder ARL_FAULT_DIR has a file
`hang` then. Others are always right, so that whoever is paid less was paid for somebody's failure.
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
from agentgym_rl.core.chat import Message
from agentgym_rl.core.task import Split, TaskSource
from agentgym_rl.gym.env import Step

FOLDER = Path(os.environ.get("ARL_FAULT_DIR", "."))


def _say(name: str) -> None:
    """That it is so now: a file that is there once it is whole."""
    part = FOLDER / f"{name}.part"
    part.write_text(repr(time.monotonic()))
    part.rename(FOLDER / name)


def _asked() -> bool:
    """Whether somebody has asked, which counts for one call."""
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
    """A step that never returns."""

    async def step(self, action: Message) -> Step:
        await self._maybe_hang()
        return await super().step(action)


class HangingEnv(_Hangs):
    """A reset that never returns."""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        await self._maybe_hang()
        return await super().reset(seed=seed, options=options)


class Submits(Agent):
    """Of the environment `code`: has the model say something, and submits the right program.

    Where somebody asks, a program that stops itself is tried before.
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
    """What the verifier pool is asked."""
    return 7 * number


class Judged(MathEnv):
    """Any reply is paid if the verifier pool knows what 6 times 7 is.

    Args:
        fresh: Ask a fresh worker each time, which has to be forked: those that there are would do
            without a host. Else workers stay.
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
