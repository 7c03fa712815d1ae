"""What a run asks of whoever starts its processes: `local.py` on one machine, `ray_processes.py` on
many."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from agentgym_rl.core.errors import ProcessDied

from .forking import Forks
from .spec import ProcessSpec


class Processes(Protocol):
    """The children of a run, by name; all of them end with it."""

    @property
    def forks(self) -> Forks | None:
        """What children of this machine may be forked from."""
        ...

    @property
    def host(self) -> str:
        """The address at which every child reaches this process."""
        ...

    async def address(self, name: str) -> tuple[str, int]:
        """Where a child that is not started yet will run, and a port that is free there now."""
        ...

    async def start(self, spec: ProcessSpec) -> None:
        """Start a child; its output goes to `log_path`, after that of an earlier one."""
        ...

    async def end(self, name: str) -> None:
        """Kill what is left of a child and its own children, and wait until it is gone.

        Raises:
            ProcessDied: it cannot be got rid of.
        """
        ...

    async def forget(self, name: str) -> None:
        """`end` a child, and free what was set aside for it; nothing where there is none.

        Raises:
            ProcessDied: see `end`.
        """
        ...

    async def kill(self, name: str) -> None:
        """SIGKILL a child and its own children."""
        ...

    def log_path(self, name: str) -> Path:
        """Where a child's output goes."""
        ...

    def pid(self, name: str) -> int:
        """A child's process id, on its machine."""
        ...

    async def ready(self, name: str, *, timeout_s: float) -> None:
        """Wait until a child's health URL answers 200.

        Raises:
            ProcessDied: it ended instead, or was not ready in `timeout_s`.
        """
        ...

    async def ended(self, name: str) -> ProcessDied | None:
        """Wait until a child ends, is frozen, hangs, or its machine is gone: what happened; None
        for a finite child that ended well."""
        ...
