"""The interface for starting a run's processes: `local.py` implements it for one machine,
`ray_processes.py` for many."""

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
        """Return the forks that children of this machine may use; None: there are none."""
        ...

    @property
    def host(self) -> str:
        """Return the address at which every child reaches this process."""
        ...

    async def address(self, name: str) -> tuple[str, int]:
        """Return the address where a child will run, and a port that is free there now."""
        ...

    async def start(self, spec: ProcessSpec) -> None:
        """Start a child; its output goes to `log_path`, after that of an earlier one."""
        ...

    async def end(self, name: str) -> None:
        """Kill what is left of a child and its own children, and wait until it is gone.

        Raises:
            ProcessDied: the child does not end even after SIGKILL.
        """
        ...

    async def forget(self, name: str) -> None:
        """End a child if it exists (see `end`), and free the resources reserved for it.

        Raises:
            ProcessDied: see `end`.
        """
        ...

    async def kill(self, name: str) -> None:
        """Kill a child and its own children with SIGKILL."""
        ...

    def log_path(self, name: str) -> Path:
        """Return the path of a child's log file."""
        ...

    def pid(self, name: str) -> int:
        """Return a child's process id on its machine."""
        ...

    async def ready(self, name: str, *, timeout_s: float) -> None:
        """Wait until a child's health URL answers 200.

        Raises:
            ProcessDied: the child ended instead, or was not ready in `timeout_s`.
        """
        ...

    async def ended(self, name: str) -> ProcessDied | None:
        """Wait until a child ends, is frozen, hangs, or its machine is gone; return the event, or
        None for a finite child that ended well."""
        ...
