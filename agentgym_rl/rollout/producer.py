"""The producer that plays groups in this process, as fast as admission allows, and the cursor of
tasks.

The cursor returns tasks in their order, without those of weight 0 and those that the run's task
selection (task_choice.py) skips.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Protocol

from agentgym_rl.config import RolloutConfig
from agentgym_rl.core import ConfigError, Task, TaskSource, Trajectory, derived_seed
from agentgym_rl.gateway import SessionSampling
from agentgym_rl.gym.data import Epochs, without_end

from .episode import Player
from .groups import OpenGroup, OpenGroups
from .retries import play_with_retries
from .task_choice import Draws, draws_kind

_DRAWING = ThreadPoolExecutor(1, thread_name_prefix="draw tasks")
"""The thread that reads all tasks of this process: sources may share state between reads, and a
read goes on when its caller is cancelled."""


async def drawn(tasks: TaskSource, index: int) -> Task:
    """Return the task at an index; the event loop is not blocked while the source makes it.

    Raises:
        IndexError: a finite source has no such task.
    """
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_DRAWING, tasks.__getitem__, index)


class Cursor(Protocol):
    """An order of tasks."""

    async def next(self) -> tuple[int, Task]:
        """Return the next task, and its index, which no other task of the run has. One call at a
        time."""
        ...


class TaskCursor(Cursor):
    """A cursor over tasks in the order of their index; a finite source starts over.

    `logged` has the indices whose groups are complete already, which are skipped; `draws` may skip
    others. The metrics `rollout/epochs`, `rollout/weight_0` and `rollout/passed_over` are kept up
    to date in `numbers`, if given.

    Raises:
        ConfigError: the run chooses among its tasks, and there are no `draws`.
    """

    def __init__(
        self,
        config: RolloutConfig,
        tasks: TaskSource,
        *,
        seed: int,
        logged: Collection[int] = (),
        draws: Draws | None = None,
        version: Callable[[], int] = lambda: 0,
        numbers: MutableMapping[str, float] | None = None,
    ) -> None:
        if draws is None and (kind := draws_kind(config)) is not None:
            raise ConfigError(
                f"{kind.key(config)}: tasks are drawn without a log here, "
                "so there are no rewards to choose by; leave the key out"
            )
        self._config = config
        self._tasks = without_end(tasks, seed=seed, shuffle=config.shuffle)
        self._logged = logged
        self._numbers: MutableMapping[str, float] = {} if numbers is None else numbers
        self._draws, self._version = draws, version
        taken: Sequence[int] = draws.taken if draws else ()
        self._again = deque(index for index in taken if index not in logged)
        """The tasks that were taken and whose groups are still to be played."""
        self._index = taken[-1] + 1 if taken else 0
        if taken:
            self._numbers["rollout/passed_over"] = float(self._index - len(taken))
        self._next: tuple[int, Task] | None = None
        self._untrained_in_a_row = self._passed_in_a_row = 0

    async def next(self) -> tuple[int, Task]:
        """Return the next task to play, and its index. One call at a time; if it is cancelled, the
        next one returns the same task.

        Raises:
            ConfigError: too many tasks in a row have weight 0, or were skipped.
        """
        if self._next is None:
            self._next = await self._found()
        if self._draws is not None:
            await self._draws.record(*self._next)
        found, self._next = self._next, None
        return found

    async def _found(self) -> tuple[int, Task]:
        if self._again:
            task = await drawn(self._tasks, self._again[0])
            return self._again.popleft(), task
        while True:
            index = self._index
            task = None if index in self._logged else await drawn(self._tasks, index)
            self._index += 1
            if task is not None and self._is_trained(index, task) and self._is_taken(index, task):
                return index, task

    def _is_taken(self, index: int, task: Task) -> bool:
        """Return whether the task is taken; count the skipped ones."""
        if self._draws is None or self._draws.takes(index, task, version=self._version()):
            self._passed_in_a_row = 0
            return True
        self._numbers["rollout/passed_over"] = self._numbers.get("rollout/passed_over", 0.0) + 1
        self._passed_in_a_row += 1
        if self._passed_in_a_row >= self._config.max_rejected:
            raise self._draws.exhausted(self._passed_in_a_row)
        return False

    def _is_trained(self, index: int, task: Task) -> bool:
        """Return whether the task has a weight; count the tasks that have none."""
        numbers = self._numbers
        epoch = self._tasks.epoch_length if isinstance(self._tasks, Epochs) else 0
        if epoch:
            numbers["rollout/epochs"] = index / epoch
        if task.weight > 0:
            self._untrained_in_a_row = 0
            return True
        numbers["rollout/weight_0"] = numbers.get("rollout/weight_0", 0.0) + 1
        self._untrained_in_a_row += 1
        # Two epochs, since each is shuffled differently: the only task with a weight may be the
        # first of one epoch and the last of the next. So many in a row contain every task.
        if self._untrained_in_a_row >= (2 * epoch or self._config.max_rejected):
            raise ConfigError(
                f"{self._untrained_in_a_row} tasks in a row have weight 0"
                f"{f', all {epoch} that there are' if epoch else ' (rollout.max_rejected)'}: "
                "there is nothing to train on"
            )
        return False


async def play_member(
    config: RolloutConfig,
    player: Player,
    task: Task,
    *,
    seed: int,
    group_id: str,
    episode_id: str,
) -> Trajectory:
    """Play a training episode, again while infrastructure fails. Its random draws depend on the
    run's `seed` and on its id, not on the process that plays it."""
    return await play_with_retries(
        player,
        task,
        episode_id=episode_id,
        group_id=group_id,
        sampling=SessionSampling(
            temperature=config.temperature,
            max_tokens=config.max_tokens,
            seed=derived_seed(seed, episode_id),
            train=True,
        ),
        max_retries=config.max_retries,
    )


class Producer(ABC):
    """A producer of the groups that a run trains on. Use `run` inside `started()`."""

    restarts: int = 0
    """The number of restarts of the producer's processes."""

    @asynccontextmanager
    async def started(self) -> AsyncGenerator[object]:
        """Start the producer's processes for a context; no group is admitted yet."""
        yield

    @abstractmethod
    async def run(self) -> None:
        """Admit and finish groups until cancelled."""


class LocalProducer(Producer):
    """A producer that plays groups in this process, as fast as admission allows, until
    cancelled."""

    def __init__(
        self,
        config: RolloutConfig,
        groups: OpenGroups,
        cursor: Cursor,
        player: Player,
        *,
        seed: int,
    ) -> None:
        self._config = config
        self._groups = groups
        self._cursor = cursor
        self._player = player
        self._seed = seed

    async def run(self) -> None:
        """Admit and play groups, in the order of their tasks, until cancelled."""
        buffer = self._groups.buffer
        async with asyncio.TaskGroup() as playing:
            while True:
                if self._groups.chooses:  # decided at the version that plays it
                    await buffer.wait_room()
                index, task = await self._cursor.next()
                await buffer.wait_room()
                group = self._groups.admit_task(index, task)
                for name in group.missing:
                    playing.create_task(self._play(group, name), name=f"episode {name}")
                if self._groups.is_whole(group):
                    playing.create_task(self._groups.finish(group), name=f"group {index}")

    async def _play(self, group: OpenGroup, name: str) -> None:
        """Play a member; if it is the last one of its group, finish the group."""
        member = await play_member(
            self._config,
            self._player,
            group.task,
            seed=self._seed,
            group_id=group.id,
            episode_id=name,
        )
        if await self._groups.add(group, member):
            await self._groups.finish(group)
