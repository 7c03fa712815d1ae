"""The contract of a task selection (`Draws`), which an installed package registers.

The cursor (producer.py) offers the tasks in their order, and the selection takes or skips each one.
It may depend on results of groups, so a task that is taken is logged before it is played: a resumed
run takes the same tasks. An entry point of the group `agentgym_rl.draws` names a `DrawsKind`, whose
`takes` decides from `rollout` whether it applies; without one, every task is played. One member is
the curriculum (arl_objectives/curriculum.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from agentgym_rl.config import RolloutConfig
from agentgym_rl.core import ConfigError, Group, Task, load_extensions, only_one
from agentgym_rl.storage import EpisodeLog, Recovered
from agentgym_rl.storage.recovery import NOTHING

GROUP = "draws"


class Draws(ABC):
    """A selection of the tasks of one run. One event loop only."""

    @property
    @abstractmethod
    def taken(self) -> Sequence[int]:
        """Return the indices of all tasks taken so far, ascending."""

    @abstractmethod
    def takes(self, index: int, task: Task, *, version: int) -> bool:
        """Return whether the task at `index` is to be played while `version` is served. The answer
        depends only on groups that began under the version before, or earlier."""

    @abstractmethod
    async def record(self, index: int, task: Task) -> None:
        """Log that a task is taken, before it is played. Idempotent."""

    @abstractmethod
    def saw(self, group: Group) -> None:
        """Record the result of a group that has ended and is in the log."""

    @abstractmethod
    def exhausted(self, passed: int) -> ConfigError:
        """Return the error, with advice, that ends a run after `passed` tasks in a row were
        skipped."""


class DrawsKind(ABC):
    """A kind of task selections. Its methods have no side effects."""

    @abstractmethod
    def takes(self, config: RolloutConfig) -> bool:
        """Return whether this kind selects the tasks of a run with this configuration."""

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
        """Return the selection for a run; it continues from the decisions and results in the run's
        log.

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
    """Return the task selection of a run; None: every task is played.

    Raises:
        ConfigError: see `draws_kind` and `DrawsKind.check`.
    """
    kind = draws_kind(config)
    return kind and kind.draws(config, episodes, seed=seed, recovered=recovered)
