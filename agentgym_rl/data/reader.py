"""Rows of a data set: one pass over all, then any of them by its place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

from .fields import Row

Place = tuple[int, int]
"""Where a row is; what the numbers mean is the reader's own business."""


class Found(NamedTuple):
    place: Place
    where: str
    """For people: the file and the line or row."""
    row: Row


class Reader(ABC):
    """Rows of one file, or of one split of a data set; holds at most a few of them.

    Can be pickled.
    """

    name: str
    """Of the file or data set, for people."""

    @abstractmethod
    def __iter__(self) -> Iterator[Found]:
        """Every row, in order.

        Raises:
            ConfigError: the data is malformed; says where.
        """

    @abstractmethod
    def at(self, place: Place) -> Row:
        """The row that is there.

        Raises:
            ConfigError: the data has changed since.
        """
