"""The host side of one mode, in a process of its own: says what became of what it is asked.

    python driver.py MODE FOLDER

Requests and replies are lines of JSON on standard input and output. Standard library only.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import platform
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Self

import attacks  # noqa: F401  fills ATTACKS
import storms
from arena import ATTACKS, CONTAINER_MODES, IMAGE_MODES, LANDLOCK_MODES, LIMITS, Arena
from arl_sandboxes.local import LocalBackend

from agentgym_rl.gym import ImageRecipe, Limits, Sandbox, SandboxBackend

SYSTEM_PYTHON = "/usr/bin/python3"
"""Programs of mode "landlock" are nobody, and root's own interpreter may be in /root."""


class ImagedBackend(LocalBackend):
    """One whose every sandbox starts from an image."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        files = {"Dockerfile": b"FROM debian:12\nWORKDIR /box\n"}
        self._image = await self.prepare(ImageRecipe("the arena's", files))
        return self

    async def create(self, *, limits: Limits | None = None, timeout_s: float = 60.0) -> Sandbox:
        return await super().create(limits=limits, image=self._image, timeout_s=timeout_s)


def backend(mode: str, slots: int) -> SandboxBackend:
    return (ImagedBackend if mode in IMAGE_MODES else LocalBackend)(
        slots=slots,
        limits=LIMITS,
        image_cache=os.path.join(tempfile.gettempdir(), "images"),
        cgroup="auto" if mode == "cgroup" else "off",
        python=SYSTEM_PYTHON if mode == "landlock" and os.path.exists(SYSTEM_PYTHON) else "",
        isolation="landlock" if mode in LANDLOCK_MODES else "namespaces",
    )


def arena_of(mode: str, canary: Path) -> Arena:
    about = {
        "canary": canary, "secret": os.environ["ARL_SECURITY_SECRET"],
        "machine": platform.machine(), "python_prefix": sys.base_prefix,
        "landlock": ctypes.CDLL(None).syscall(444, None, 0, 1),
    }  # fmt: skip
    if mode in CONTAINER_MODES:
        from containers import container_arena  # which needs the docker SDK

        return container_arena(mode, **about)
    if mode in IMAGE_MODES:
        about["empty"] = "[] [] []\n"
    return Arena(mode, backend(mode, 1), make_backend=lambda slots: backend(mode, slots), **about)


async def ask(line: str, arena: Arena) -> dict[str, object]:
    """Do one thing; {"ok": ...} or {"error": why}."""
    request = json.loads(line)
    if request["op"] == "attack":
        await arena.contain(ATTACKS[request["name"]])
        await arena.check_processes()
        return {}
    if request["op"] == "scan":
        return await storms.scan(arena)
    if request["op"] == "storm":
        return await storms.storm(arena)
    if request["op"] == "soak":
        return await storms.soak(arena, request["count"])
    raise ValueError(f"op {request['op']!r}")


async def serve(mode: str, canary: Path) -> None:
    arena = arena_of(mode, canary)
    report = await arena.backend.probe()
    if not report.ok or (mode == "cgroup" and not report.capabilities.total_memory):
        say(unavailable=report.complaint() or "no cgroup with the memory controller can be made")
        return
    async with arena.backend:
        await arena.prepare()
        say(ready=sorted(ATTACKS))
        while line := await asyncio.to_thread(sys.stdin.readline):
            started = time.perf_counter()
            try:
                answer = await ask(line, arena)
            except BaseException:
                answer = {"error": traceback.format_exc()}
            say(**answer, seconds=round(time.perf_counter() - started, 3))


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2])))
