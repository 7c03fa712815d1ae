"""Rollout workers as the controller knows them: who lives, and what each of them plays."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field

from .task import Task
from .trajectory import Trajectory
from .worker_launch import worker_name


@dataclass(eq=False)
class WorkerLife:
    """A worker from its start to its loss. `name` is the same in all its lives."""

    name: str
    number: int
    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    is_ready: bool = False
    is_leaving: bool = False
    """Whether it gets no more groups, and ends when it has played those it has."""
    heard_s: float = field(default_factory=time.monotonic)
    """When it last said anything."""
    groups: set[OpenGroup] = field(default_factory=set["OpenGroup"])
    """What it plays."""

    @property
    def id(self) -> str:
        """ "rollout-1#2" after two restarts."""
        return f"{self.name}#{self.number}" if self.number else self.name


@dataclass(eq=False)
class OpenGroup:
    """A group that was admitted, and is not complete."""

    id: str
    index: int
    task: Task
    names: list[str]
    """Episode ids of its members, in their order."""
    members: dict[str, Trajectory]
    arriving: set[str] = field(default_factory=set[str])
    """Members that are on their way into the log."""

    @property
    def missing(self) -> list[str]:
        """Members that have to be played."""
        return [n for n in self.names if n not in self.members and n not in self.arriving]


@dataclass(eq=False)
class WorkerSlot:
    """A worker through all its lives."""

    index: int
    life: WorkerLife
    restarts: int = 0
    runs: bool = False
    """Whether it was started, and not ended."""
    once: bool = False
    """Whether it is not started again: it is leaving, or joined and was never ready."""
    ended_by: str = ""
    """Of one that was not started again: why it ended."""
    late: asyncio.Future[str] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Why its present life was cut off."""

    @property
    def name(self) -> str:
        return worker_name(self.index)
