"""The contract of a choice among the tasks of a run, which an installed package registers.

The cursor (producer.py) offers the tasks in their order, and the choice takes each one or passes
over it. It may depend on results of groups, so the log has a task that is taken before it is
played: a run that is resumed takes the same ones. An entry point of the group `agentgym_rl.draws`
names a `DrawsKind`, which says itself from `rollout` whether it is meant; without one, every task
is played; arl_objectives/curriculum.py is a member.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from agentgym_rl.config import RolloutConfig
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.extensions import load_extensions, only_one
from agentgym_rl.core.group import Group
from agentgym_rl.core.task import Task
from agentgym_rl.storage.episode_log import EpisodeLog
from agentgym_rl.storage.recovery import NOTHING, Recovered

GROUP = "draws"


class Draws(ABC):
    """A choice among the tasks of one run. One event loop only."""

    @property
    @abstractmethod
    def taken(self) -> Sequence[int]:
        """Return the indices of all tasks taken so far, ascending."""

    @abstractmethod
    def takes(self, index: int, task: Task, *, version: int) -> bool:
        """Return whether the task at `index` is to be played, while `version` is served. It depends
        on no result of a group that began later than the version before."""

    @abstractmethod
    async def record(self, index: int, task: Task) -> None:
        """Log that a task is taken, before it is played. Idempotent."""

    @abstractmethod
    def saw(self, group: Group) -> None:
        """Keep the result of a group that has ended, and is in the log."""

    @abstractmethod
    def exhausted(self, passed: int) -> ConfigError:
        """Return the error of a run that would end because `passed` tasks in a row were passed
        over, with advice."""


class DrawsKind(ABC):
    """A kind of choices among tasks. Its methods have no side effects."""

    @abstractmethod
    def takes(self, config: RolloutConfig) -> bool:
        """Return whether this kind chooses the tasks of a run with this configuration."""

    @abstractmethod
    def key(self, config: RolloutConfig) -> str:
        """Return the key, with its value, that makes a run choose, as errors name it."""

    @abstractmethod
    def check(self, config: RolloutConfig) -> None:
        """Refuse a configuration before anything is started.

        Raises:
            ConfigError: it does not work.
        """

    @abstractmethod
    def draws(
        self, config: RolloutConfig, episodes: EpisodeLog, *, seed: int, recovered: Recovered
    ) -> Draws:
        """Return the choice of a run, which goes on from the answers and results in its log.

        Raises:
            ConfigError: see `check`.
        """


def draws_kind(config: RolloutConfig) -> DrawsKind | None:
    """Return the registered kind that takes this configuration; None: every task is played.

    Raises:
        ConfigError: several kinds take it.
    """
    members = load_extensions(GROUP, of=DrawsKind)
    kinds = {name: kind for name, kind in members.items() if kind.takes(config)}
    return only_one(GROUP, kinds, would="would both choose the tasks of this run")


def draws_of(
    config: RolloutConfig, episodes: EpisodeLog, *, seed: int, recovered: Recovered = NOTHING
) -> Draws | None:
    """Return the choice among the tasks of a run; None: every task is played.

    Raises:
        ConfigError: see `draws_kind` and `DrawsKind.check`.
    """
    kind = draws_kind(config)
    return kind and kind.draws(config, episodes, seed=seed, recovered=recovered)
