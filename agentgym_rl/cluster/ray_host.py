"""What the host of a process says, or how it failed: a ProcessDied, never an error of Ray's own.

The actor beside a process on a node of a Ray cluster: its parent there.
"""

# ray may not be in the environment that checks types.
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from agentgym_rl import __version__
from agentgym_rl.cluster.local import LocalProcesses
from agentgym_rl.core.errors import ConfigError, ProcessDied

from .spec import ProcessSpec, free_port


async def end_of(name: str, reference: Any) -> ProcessDied | None:
    """What a host says, which is nothing or how its child has ended."""
    try:
        return await answer(name, reference)
    except ProcessDied as error:
        return error


async def answer(name: str, reference: Any, *, timeout_s: float | None = None) -> Any:
    try:
        async with asyncio.timeout(timeout_s):
            return await reference
    except TimeoutError:
        raise ProcessDied(
            f"{name}: its node, or its host there, did not answer within {timeout_s:g} s"
        ) from None
    except RayTaskError as error:
        cause = error.cause
        raise (
            cause if isinstance(cause, ProcessDied) else ProcessDied(f"{name}: {error}")
        ) from error
    except RayActorError as error:
        raise ProcessDied(f"{name}: its host is gone: {error}") from error


@dataclass(frozen=True, slots=True)
class Found:
    """What a host finds on its node."""

    address: str
    pid: int
    version: str
    """Of this package there."""
    unseen: list[str]
    """Of the folders that it was asked for, those that the driver's are not."""


class Host:
    """Starts one process as its own child: whatever ends the host, or its node, ends it too."""

    def __init__(self, logs: str, stop_timeout_s: float) -> None:
        self._processes = LocalProcesses(Path(logs), stop_timeout_s=stop_timeout_s)
        self._has_begun = False

    async def look(self, tokens: Mapping[str, str]) -> Found:
        """`tokens`: files that the driver has written, and what is in them."""
        unseen = [path for path, text in tokens.items() if _read(Path(path)) != text]
        return Found(ray.util.get_node_ip_address(), os.getpid(), __version__, unseen)

    async def address(self) -> tuple[str, int]:
        """This node's address, and a port of it that is free now."""
        address = ray.util.get_node_ip_address()
        return address, free_port(address)

    async def beat(self) -> None:
        """A sign of life."""

    async def start(self, spec: ProcessSpec, python: str) -> int:
        """`python` is the driver's: this node has its own."""
        if spec.argv[0] == python:
            spec = replace(spec, argv=[sys.executable, *spec.argv[1:]])
        await self._processes.__aenter__()
        await self._processes.start(spec)
        self._has_begun = True
        return self._processes.pid(spec.name)

    async def ready(self, name: str, timeout_s: float) -> None:
        await self._processes.ready(name, timeout_s=timeout_s)

    async def ended(self, name: str) -> ProcessDied | None:
        return await self._processes.ended(name)

    async def end(self, name: str) -> None:
        if self._has_begun:
            await self._processes.end(name)

    async def kill(self, name: str) -> None:
        if self._has_begun:
            await self._processes.kill(name)

    async def stop(self) -> None:
        await self._processes.stop()


def check_found(found: Found) -> None:
    """Refuse a node that cannot take part.

    Raises:
        ConfigError: it has another version of this package, or does not see a shared folder.
    """
    if found.version != __version__:
        raise ConfigError(
            f"node {found.address} has agentgym-rl {found.version}, this one {__version__}: "
            "install the same on all"
        )
    if found.unseen:
        folders = ", ".join(str(Path(path).parent) for path in found.unseen)
        raise ConfigError(
            f"node {found.address} does not see {folders} of this machine. Every node needs the "
            "run's folder (--run) and that of the weights (weights.folder): put them on a file "
            "system that all of them mount"
        )


def check_import(error: ProcessDied) -> None:
    """Refuse a node on which a host fails because this package is not there.

    Raises:
        ConfigError: that is why.
    """
    if "No module named" in str(error):
        raise ConfigError(
            f"a node cannot import this package ({error}). Install it there, or send it: "
            'cluster.runtime_env = { py_modules = ["agentgym_rl-….whl"] }'
        ) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
