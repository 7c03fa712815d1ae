"""An endless source that repeats a finite one, each epoch in an order of its own; and a resumable
iterator over tasks, with torchdata's `Stateful` protocol."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from agentgym_rl.core import ConfigError, Task, TaskSource, length_of

from .rows import CONTENT, content_of

_ROUNDS = 6
_LEAST_HALF_BITS = 3
"""The minimum bits of a permuted number's half: fewer would allow too few permutations."""


class Epochs(TaskSource):
    """An endless repetition of `tasks`: index i is task i mod length of epoch i // length.

    Each epoch has every task once, in an order that depends only on (seed, epoch); with
    `shuffle=False` it is always the source's order. So a cursor is one integer, and no order is
    kept in memory. The ids of the tasks do not change.

    Raises:
        ConfigError: there are no tasks.
    """

    def __init__(self, tasks: TaskSource, *, seed: int = 0, shuffle: bool = True) -> None:
        self._tasks = tasks
        self._seed = seed
        self._shuffle = shuffle
        self.epoch_length = len(tasks)
        if self.epoch_length < 1:
            raise ConfigError("there are no tasks to make epochs of")

    def __getitem__(self, index: int, /) -> Task:
        if index < 0:
            raise IndexError(f"task index {index}: expected 0 or more")
        epoch, place = divmod(index, self.epoch_length)
        if self._shuffle:
            place = permuted(place, self.epoch_length, key=f"{self._seed}/{epoch}")
        return self._tasks[place]

    def describe(self) -> dict[str, Any]:
        described = self._tasks.describe()
        if CONTENT not in described:
            return described
        order = self._seed if self._shuffle else None
        return described | {CONTENT: content_of(described[CONTENT], "epochs", order)}


def without_end(tasks: TaskSource, *, seed: int, shuffle: bool) -> TaskSource:
    """Return `tasks`, wrapped in `Epochs` if they are finite."""
    if length_of(tasks) is None:
        return tasks
    return Epochs(tasks, seed=seed, shuffle=shuffle)


def permuted(number: int, length: int, *, key: str) -> int:
    """Return the image of `number` in the permutation of range(length) that `key` selects.

    The method is a Feistel network over the next power of four, applied until the result is below
    `length` (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"): no memory, 20 µs.
    """
    half = max(_LEAST_HALF_BITS, ((length - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    rounds = hashlib.blake2b(key.encode(), digest_size=16).digest()
    while True:
        left, right = number >> half, number & mask
        for turn in range(_ROUNDS):
            block = right.to_bytes(8, "big")
            digest = hashlib.blake2b(block, digest_size=8, key=rounds, salt=bytes([turn])).digest()
            left, right = right, left ^ (int.from_bytes(digest, "big") & mask)
        number = left << half | right
        if number < length:
            return number


class TaskLoader(Iterator[Task]):
    """An iterator over `tasks`, once; wrap a finite source in `Epochs` for endless iteration.

    `state_dict()` is one integer and, if the source has one, a digest of the tasks and their order
    (`content` in its description: sources of rows have it, and epochs and mixes of them);
    `load_state_dict` continues with exactly the next task. torchdata accepts a loader directly:
    `torchdata.nodes.IterableWrapper(TaskLoader(...))`. A finite source also works by itself as
    the map-style data set of torchdata's `StatefulDataLoader`, with `collate_fn=list`.
    """

    def __init__(self, tasks: TaskSource) -> None:
        self._tasks = tasks
        self._index = 0

    def __next__(self) -> Task:
        try:
            task = self._tasks[self._index]
        except IndexError:
            raise StopIteration from None
        self._index += 1
        return task

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON."""
        return {"index": self._index, CONTENT: self._content()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state.

        Raises:
            ConfigError: the state is invalid, or belongs to other tasks.
        """
        index = state_dict.get("index")
        if not isinstance(index, int) or isinstance(index, bool) or index < 0:
            raise ConfigError(f"state of a TaskLoader: got {state_dict!r:.200}, expected an index")
        if state_dict.get(CONTENT) != self._content():
            raise ConfigError(
                f"this state is of other tasks: got content {state_dict.get(CONTENT)}, the "
                f"tasks here have {self._content()}; has a file changed, an option, the seed, the "
                "split, or the version of this package?"
            )
        self._index = index

    def _content(self) -> Any:
        return self._tasks.describe().get(CONTENT)
