"""The contracts of the parts that extensions add to a run: producers of its groups, preparations,
and receivers of its metrics.

A producer plays the groups that train: this process does, unless a registered kind
(`agentgym_rl.producers`) takes the configuration. A preparation (`agentgym_rl.preparations`) works
on the model, or refuses it, before training begins. A receiver (`agentgym_rl.receivers`) gets a
copy of the metrics. Modules of all of them are imported in each run, so they import slow modules
only when they are used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agentgym_rl.cluster import Forks, ProcessSpec
from agentgym_rl.config import Config
from agentgym_rl.core import extension_names, load_extension, only_one

if TYPE_CHECKING:  # slow imports, during which the fork server does its own
    from agentgym_rl.report import Progress
    from agentgym_rl.rollout import Cursor, OpenGroups, Player, Producer

    from .training import TrainingRun

PRODUCERS = "producers"
PREPARATIONS = "preparations"
RECEIVERS = "receivers"
CALLBACKS: ContextVar[Sequence[object]] = ContextVar("callbacks", default=())
"""The callbacks that a program gave to the run that begins in this task."""


@dataclass(frozen=True, slots=True)
class Forked:
    """The processes of a run that the fork server may fork."""

    count: int = 0
    imports: Sequence[str] = ()
    """The modules that are imported before they are forked."""


class ProducerKind(ABC):
    """A kind of producers of groups. Its methods have no side effects before `producer`."""

    @abstractmethod
    def takes(self, config: Config) -> bool:
        """Return whether this kind produces the groups of a run with this configuration."""

    def forked(self, config: Config) -> Forked:
        """Return what the fork server needs for the producer's processes."""
        return Forked()

    def processes(
        self, config: Config, config_file: Path, *, controller_url: str
    ) -> list[ProcessSpec]:
        """Return the processes that the producer starts, for `arl train --dry-run`."""
        return []

    @abstractmethod
    def producer(
        self, run: TrainingRun, groups: OpenGroups, cursor: Cursor, player: Player
    ) -> Producer:
        """Return the producer of `run`, which admits the tasks of `cursor`, or others, as `groups`.
        `player` plays episodes in this process."""


class _InThisProcess(ProducerKind):
    """The kernel's own kind: this process plays."""

    def takes(self, config: Config) -> bool:
        return True

    def producer(
        self, run: TrainingRun, groups: OpenGroups, cursor: Cursor, player: Player
    ) -> Producer:
        from agentgym_rl.rollout import LocalProducer

        return LocalProducer(run.config.rollout, groups, cursor, player, seed=run.config.seed)


def producer_kind(config: Config) -> ProducerKind:
    """Return the registered kind that takes this configuration, or else that of this process.

    Raises:
        ConfigError: several kinds take it.
    """
    kinds: dict[str, ProducerKind] = {}
    for name in extension_names(PRODUCERS):
        kind: ProducerKind = load_extension(PRODUCERS, name)
        if kind.takes(config):
            kinds[name] = kind
    found = only_one(PRODUCERS, kinds, would="would both produce the groups of this run")
    return _InThisProcess() if found is None else found


@dataclass(frozen=True, slots=True)
class Opened:
    """A run whose folder exists, before anything is started in it."""

    config: Config
    model_dir: Path
    run_dir: Path
    config_file: Path
    evaluates: bool
    """True if the run plays held-out tasks."""
    is_new: bool
    """False if the run is resumed."""
    forks: Forks | None


Preparation = Callable[[Opened, "Progress"], Awaitable[Config]]
"""A member of the group of preparations: works on the model, and returns the configuration of a
run that begins with what it has made; the same one if it has nothing to do."""


class Receiver(Protocol):
    """A receiver of a run's metrics beside `metrics.jsonl`, such as experiment trackers. Its
    methods raise no errors: a copy of the metrics ends no run."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the numbers of a step, which may come in several parts; step numbers never
        decrease."""

    def close(self) -> None:
        """Write what is pending; idempotent."""


OpenReceiver = Callable[[Config, Path], Receiver]
"""A member of the group of receivers: opens the receiver of a run in this folder, or raises a
`ConfigError`, which ends the command before anything starts."""
