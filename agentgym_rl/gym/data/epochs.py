"""A finite source without an end: epoch after epoch, each in an order of its own."""

from __future__ import annotations

import hashlib
from typing import Any

from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.task import Task, TaskSource, length_of

from .rows import CONTENT, content_of

_ROUNDS = 6
_LEAST_HALF_BITS = 3
"""Of the numbers that are permuted: fewer would leave too few orders to choose from."""


class Epochs(TaskSource):
    """`tasks` for ever: index i is task number i mod length of epoch i // length, shuffled.

    Each epoch has every task once, in an order that is a function of (seed, epoch) alone; with
    `shuffle=False` always the source's own. So a cursor is one integer, and nothing is held in
    memory. Its ids stay the tasks' own.

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
        told = self._tasks.describe()
        if CONTENT not in told:
            return told
        order = self._seed if self._shuffle else None
        return told | {CONTENT: content_of(told[CONTENT], "epochs", order)}


def without_end(tasks: TaskSource, *, seed: int, shuffle: bool) -> TaskSource:
    """`tasks`, in `Epochs` if they are finite."""
    if length_of(tasks) is None:
        return tasks
    return Epochs(tasks, seed=seed, shuffle=shuffle)


def permuted(number: int, length: int, *, key: str) -> int:
    """Where `number` goes in the permutation of range(length) that `key` names.

    A Feistel network over the next power of four, walked until it is back below `length`
    (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"): no memory, some 20 µs.
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
