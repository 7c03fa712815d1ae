"""Which task is played next: in their order, without those of no weight, and none twice."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, MutableMapping

from agentgym_rl.config import Config
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.task import Task, TaskSource
from agentgym_rl.gym.data import Epochs, without_end


class TaskCursor:
    """Tasks in the order of their index; a finite source starts over.

    `logged`: indices whose groups are complete already, which are left out. `numbers` are kept up
    to date: `rollout/epochs` and `rollout/weight_0`.
    """

    def __init__(
        self,
        config: Config,
        tasks: TaskSource,
        *,
        logged: Collection[int] = (),
        numbers: MutableMapping[str, float],
    ) -> None:
        self._config = config.rollout
        self._tasks = without_end(tasks, seed=config.seed, shuffle=config.rollout.shuffle)
        self._logged = logged
        self._numbers = numbers
        self._index = 0
        self._untrained_in_a_row = 0

    async def next(self) -> tuple[int, Task]:
        """The next task that trains, and its index. Other things happen meanwhile where there are
        many that do not.

        Raises:
            ConfigError: none had a weight for too long.
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
        """Whether the task has a weight; keeps the count of those that have none."""
        numbers = self._numbers
        epoch = self._tasks.epoch_length if isinstance(self._tasks, Epochs) else 0
        if epoch:
            numbers["rollout/epochs"] = index / epoch
        if task.weight > 0:
            self._untrained_in_a_row = 0
            return True
        numbers["rollout/weight_0"] = numbers.get("rollout/weight_0", 0.0) + 1
        self._untrained_in_a_row += 1
        # Two epochs, shuffled apart: the one task with a weight may be the first of one epoch and
        # the last of the next. So many in a row hold every task there is.
        if self._untrained_in_a_row >= (2 * epoch or self._config.max_rejected):
            raise ConfigError(
                f"{self._untrained_in_a_row} tasks in a row have weight 0"
                f"{f', all {epoch} that there are' if epoch else ' (rollout.max_rejected)'}: "
                "there is nothing to train on"
            )
        return False
