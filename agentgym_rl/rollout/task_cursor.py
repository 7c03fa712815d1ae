"""The cursor of the tasks to play: in their order, none twice, and none of weight 0."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, MutableMapping

from agentgym_rl.config import Config
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.task import Task, TaskSource
from agentgym_rl.gym.data import Epochs, without_end


class TaskCursor:
    """A cursor over tasks in the order of their index; a finite source starts over.

    `logged` has the indices whose groups are complete already, which are left out. The metrics
    `rollout/epochs` and `rollout/weight_0` are kept up to date in `numbers`, if given.
    """

    def __init__(
        self,
        config: Config,
        tasks: TaskSource,
        *,
        logged: Collection[int] = (),
        numbers: MutableMapping[str, float] | None = None,
    ) -> None:
        self._config = config.rollout
        self._tasks = without_end(tasks, seed=config.seed, shuffle=config.rollout.shuffle)
        self._logged = logged
        self._numbers = {} if numbers is None else numbers
        self._index = 0
        self._untrained_in_a_row = 0

    async def next(self) -> tuple[int, Task]:
        """Return the next task that trains, and its index. After each task that does not train, the
        event loop runs other work.

        Raises:
            ConfigError: too many tasks in a row have weight 0.
        """
        while True:
            index = self._index
            self._index += 1
            if index in self._logged:
                continue
            task = self._tasks[index]
            if self._is_trained(index, task):
                return index, task
            await asyncio.sleep(0)

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
