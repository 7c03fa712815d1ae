"""A source of tasks from seeds: no held-out episode begins like one that is trained on."""

from __future__ import annotations

from collections.abc import Callable

from agentgym_rl import ConfigError, Task, TaskSource
from agentgym_rl.core import SeededTasks, Split, derived_number
from arl_envs.splits import split_of

PROBES = 32
"""The number of seeds that are tried to count the different openings."""
FEW = 8
"""The number of openings below which tasks differ only in later events (slippery ice)."""
MAX_TRIES = 1000


class OpeningTasks(TaskSource):
    """An infinite source of seeds whose opening falls into `split`, by the hash of its text.

    `opening` returns the first messages of a seed as text; no opening belongs to both splits.
    """

    def __init__(self, opening: Callable[[int], str], split: Split, *, seed: int) -> None:
        self._opening = opening
        self._split: Split = split
        self._seed = seed

    def __getitem__(self, index: int, /) -> Task:
        name = f"{self._split}-{self._seed}-{index}"
        for number in range(MAX_TRIES):
            seed = derived_number(f"{name}/{number}", bits=56)
            if split_of(self._opening(seed)) == self._split:
                return Task(id=name, seed=seed, split=self._split)
        raise ConfigError(
            f"task {name}: none of {MAX_TRIES} seeds begins as a task of {self._split} may; the "
            "environment has too few beginnings to hold some out"
        )


def tasks_of(opening: Callable[[int], str], split: Split, *, seed: int) -> TaskSource:
    """Return the tasks of `split`, separated by opening if there are several, else by seed."""
    if len({opening(number) for number in range(PROBES)}) < FEW:
        return SeededTasks(split, seed=seed)
    return OpeningTasks(opening, split, seed=seed)
