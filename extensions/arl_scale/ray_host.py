"""The answers of a process's host; failures are raised as ProcessDied, never as errors of Ray.

The actor that is the parent of a process on a node of a Ray cluster.
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
from agentgym_rl.cluster import LocalProcesses, ProcessSpec, free_port
from agentgym_rl.core import ConfigError, ProcessDied


async def end_of(name: str, reference: Any) -> ProcessDied | None:
    """Return the answer of a host: None, or the ProcessDied of its child or of itself."""
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
    """The facts that a host finds on its node."""

    address: str
    pid: int
    version: str
    """The version of this package on the node."""
    unseen: list[str]
    """The token files of the driver that the node cannot read: their folders are not shared."""


class Host:
    """An actor that starts one process as its child, which ends with the host or its node."""

    def __init__(self, logs: str, stop_timeout_s: float) -> None:
        self._processes = LocalProcesses(Path(logs), stop_timeout_s=stop_timeout_s)
        self._has_begun = False

    async def look(self, tokens: Mapping[str, str]) -> Found:
        """Look at the node. `tokens` are files that the driver has written, with their content."""
        unseen = [path for path, text in tokens.items() if _read(Path(path)) != text]
        return Found(ray.util.get_node_ip_address(), os.getpid(), __version__, unseen)

    async def address(self) -> tuple[str, int]:
        """Return this node's address, and a port that is free on it now."""
        address = ray.util.get_node_ip_address()
        return address, free_port(address)

    async def beat(self) -> None:
        """Answer a heartbeat."""

    async def start(self, spec: ProcessSpec, python: str) -> int:
        """Start the process, with this node's interpreter if `argv` names the driver's `python`."""
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
        ConfigError: the node has another version of this package, or does not see a shared folder.
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
    """Refuse a node on which a host fails because this package is not installed.

    Raises:
        ConfigError: `error` is due to a missing module.
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
