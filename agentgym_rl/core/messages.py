"""The messages between the controller and its rollout workers (msgpack)."""

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
    incarnation: int
    """The incarnation of the trainer ranks that published the version."""
    calm: int | None
    """The number of the period in which the engine certainly serves the version, which no other
    period of any engine has; None while it swaps."""
    kind: str = ""
    """The kind of an attached server; empty: that of `engine.type`."""


class FleetView(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The engines of the controller's router, and its state."""

    replicas: tuple[ReplicaView, ...]
    asleep: bool
    """Whether the engines sleep, so that the deadlines of replies are suspended."""


class NumberedView(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A view and its number, which is larger for a later view."""

    number: int
    view: FleetView


class Used(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The use of sandboxes and verifiers by a process's environments, since the process began."""

    machine: str = ""
    cores: int = 0
    """The number of the machine's cores that the process may run on."""
    programs: int = 0
    """The number of programs and session cells that ended with a result in sandboxes."""
    program_statuses: dict[str, int] = {}
    calls: int = 0
    """The number of calls of the verifier."""
    call_statuses: dict[str, int] = {}
    retries: int = 0
    queue_s: float = 0.0
    """The total time, in seconds, that calls have waited for a free verifier process."""
    queue_max_s: float = 0.0


class WorkerReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The report that a worker sends with each request for the list of engines; it shows that the
    worker lives."""

    seen: int
    """The number of the view that the worker uses; 0: none yet."""
    silent_s: dict[str, float]
    """The time, in seconds, for which each engine has had requests and has sent no token."""
    counters: dict[str, int]
    """The counters of the worker's router, since it began."""
    failed: tuple[str, ...] = ()
    """The engines that have failed a request since the worker's last report."""
    used: Used = Used()


class Lease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group to be played, with those of its members that are still missing."""

    group_id: str
    task_id: str
    seed: int
    data_json: str
    """The task's data as JSON, which supports larger integers than msgpack."""
    split: Split
    weight: float
    members: tuple[str, ...]
    """The episode ids of the missing members."""

    @classmethod
    def of(cls, group_id: str, task: Task, members: Sequence[str]) -> Lease:
        """Return the lease of a group of `task` for these members; see the fields."""
        data = json.dumps(dict(task.data))
        return cls(group_id, task.id, task.seed, data, task.split, task.weight, tuple(members))

    @property
    def task(self) -> Task:
        """Return the task as its source made it, with data decoded from JSON."""
        data = json.loads(self.data_json)
        return Task(self.task_id, self.seed, data, self.split, self.weight)
