"""Environments of which a call never returns, once, as soon as somebody asks for it
(benchmarks/faults.py): the folder ARL_FAULT_DIR has a file `hang` then."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arl_envs.math.env import MathEnv

from agentgym_rl.env import Message, Step

FOLDER = Path(os.environ.get("ARL_FAULT_DIR", "."))


def _say(name: str) -> None:
    """That it is so now: a file that is there once it is whole."""
    part = FOLDER / f"{name}.part"
    part.write_text(repr(time.monotonic()))
    part.rename(FOLDER / name)


class _Hangs(MathEnv):
    _hangs = False

    async def _maybe_hang(self) -> None:
        try:
            (FOLDER / "hang").unlink()
        except FileNotFoundError:
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
