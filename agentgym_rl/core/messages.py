"""What travels between the controller and its rollout workers (msgpack)."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from .task import Split, Task


class ReplicaView(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An engine in service."""

    name: str
    url: str
    version: int
    has_spans: bool


class FleetView(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The engines as the controller's router has them."""

    replicas: tuple[ReplicaView, ...]
    updating_to: int | None
    """The version that engines may begin to serve; None between publications."""
    updates: int
    """Publications that have ended."""
    asleep: bool
    """Whether they sleep: deadlines of replies stand still."""
    salts: int
    """Times that cached prefixes became nobody's: versions may come again, with other weights."""


class NumberedView(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A view, and its number: a later one has a larger one."""

    number: int
    view: FleetView


class Used(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a process's environments have had of sandboxes and verifiers, since it began."""

    machine: str = ""
    cores: int = 0
    """Of the machine, that the process may run on."""
    programs: int = 0
    """Programs and session cells that gave a result in sandboxes."""
    program_statuses: dict[str, int] = {}
    calls: int = 0
    """Of the verifier."""
    call_statuses: dict[str, int] = {}
    retries: int = 0
    queue_s: float = 0.0
    """What calls have waited for a free verifier process, their sum."""
    queue_max_s: float = 0.0


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker says each time it asks for the engines: a sign of life."""

    seen: int
    """The number of the view that it acts on; 0: none yet."""
    silent_s: dict[str, float]
    """By engine: for how long it was asked and has sent no token."""
    counters: dict[str, int]
    """Its router's, since it began."""
    failed: tuple[str, ...] = ()
    """Engines that have failed a request since it last said so."""
    used: Used = Used()


class Lease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group to be played: those of its members that are not there yet."""

    group_id: str
    task_id: str
    seed: int
    data_json: str
    """JSON knows larger integers than msgpack."""
    split: Split
    weight: float
    members: tuple[str, ...]
    """Episode ids."""

    @classmethod
    def of(cls, group_id: str, task: Task, members: Sequence[str]) -> Lease:
        """See the fields."""
        data = json.dumps(dict(task.data))
        return cls(group_id, task.id, task.seed, data, task.split, task.weight, tuple(members))

    @property
    def task(self) -> Task:
        """As its source gave it; what it holds is JSON."""
        data = json.loads(self.data_json)
        return Task(self.task_id, self.seed, data, self.split, self.weight)
