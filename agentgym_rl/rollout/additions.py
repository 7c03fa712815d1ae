"""The contract of additions to an episode: data that its training needs in addition to its tokens.
They are made once the episode has ended, before it is logged.

A batch that is trained again, after a crash or by `arl replay`, then has the same numbers. An entry
point of the group `agentgym_rl.additions` names an `AdditionKind`, whose `takes` decides from the
configuration whether it applies. One member adds the log-probs of served models
(arl_objectives/served_teachers.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from agentgym_rl.config import Config
from agentgym_rl.core import Task, Trajectory, load_extensions

GROUP = "additions"


class Addition(ABC):
    """A source of additions to the episodes of a run. One event loop only."""

    @abstractmethod
    async def added(self, episode: Trajectory, task: Task) -> Trajectory:
        """Return a trainable episode with its addition.

        Raises:
            InfraError, ConfigError: it cannot be had, so the run cannot go on.
        """


class AdditionKind(ABC):
    """A kind of additions to episodes."""

    @abstractmethod
    def takes(self, config: Config) -> bool:
        """Return whether this kind adds to the episodes of a run with this configuration."""

    async def check(self, config: Config, model_dir: Path, *, say: Callable[[str], None]) -> None:
        """Refuse a configuration that does not fit the model in `model_dir`, before anything is
        started; `say` prints progress.

        Raises:
            ConfigError: it does not fit.
            InfraError: a service that it depends on does not answer.
        """
        return None

    @abstractmethod
    def opened(self, config: Config) -> AbstractAsyncContextManager[Addition]:
        """Return the addition of a run, which ends with the context."""


def addition_kinds(config: Config) -> list[AdditionKind]:
    """Return the registered kinds that take this configuration, by their names."""
    members = load_extensions(GROUP, of=AdditionKind)
    return [kind for kind in members.values() if kind.takes(config)]


@asynccontextmanager
async def additions(config: Config) -> AsyncGenerator[Sequence[Addition]]:
    """Open the additions to the episodes of a run, in the order in which they are made."""
    async with AsyncExitStack() as stack:
        kinds = addition_kinds(config)
        yield [await stack.enter_async_context(kind.opened(config)) for kind in kinds]
