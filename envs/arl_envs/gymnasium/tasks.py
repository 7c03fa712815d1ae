"""Seeds as tasks, such that no held-out episode begins like one that is trained on."""

from __future__ import annotations

from collections.abc import Callable

from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.task import SeededTasks, Split, Task, TaskSource
from agentgym_rl.gym.data import derived_number
from arl_envs.splits import split_of

PROBES = 32
"""Seeds that are tried to see how many beginnings there are."""
FEW = 8
"""Fewer beginnings than these: what tells tasks apart is what happens later (slippery ice)."""
MAX_TRIES = 1000


class OpeningTasks(TaskSource):
    """Infinitely many seeds whose opening falls into `split`, by the hash of what it says.

    `opening` gives the first messages of a seed as text; no opening belongs to both splits.
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
    """The tasks of `split`: kept apart by their opening where there are several, else by seed."""
    if len({opening(number) for number in range(PROBES)}) < FEW:
        return SeededTasks(split, seed=seed)
    return OpeningTasks(opening, split, seed=seed)
