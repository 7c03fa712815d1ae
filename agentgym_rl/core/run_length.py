"""The run-length encoding of arrays that seldom change from one entry to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_BITS = {4: np.dtype(np.int32), 1: np.dtype(np.int8)}
"""The integer type as which entries are compared, by their number of bytes."""


class Runs(NamedTuple):
    """The common runs of several arrays of one length: a run ends when any array changes."""

    lengths: npt.NDArray[np.int32]
    """The length of each run, 1 or more: [runs]."""
    values: Sequence[Array]
    """The values of each array: [runs]."""


def runs_of(arrays: Sequence[Array]) -> Runs:
    """Return the runs of arrays, all [T], of numbers of 1 or 4 bytes, compared by their bits."""
    length = len(arrays[0])
    if not length:
        return Runs(np.zeros(0, np.int32), arrays)
    first, *others = [array.view(_BITS[array.itemsize]) for array in arrays]
    changes = first[1:] != first[:-1]
    for bits in others:
        changes |= bits[1:] != bits[:-1]
    inner = changes.nonzero()[0]
    ends = np.empty(len(inner) + 1, np.int64)  # the last entry of each run
    ends[:-1] = inner
    ends[-1] = length - 1
    lengths = np.empty(len(ends), np.int32)
    lengths[0] = ends[0] + 1
    np.subtract(ends[1:], ends[:-1], out=lengths[1:], casting="unsafe")
    return Runs(lengths, [array.take(ends) for array in arrays])


def repeated(runs: Runs, *, total: int) -> list[Array]:
    """Return the arrays of these runs, all [total].

    Raises:
        ValueError: the arrays have another length, or the runs are malformed.
    """
    lengths, values = runs
    if any(len(of) != len(lengths) for of in values) or (len(lengths) and int(lengths.min()) < 1):
        raise ValueError(
            f"{len(lengths)} runs of {[len(of) for of in values]} values: expected as many, each "
            "of 1 entry or more"
        )
    if (found := int(lengths.sum(dtype=np.int64))) != total:
        raise ValueError(f"runs of {found} entries, expected {total}")
    return [of.repeat(lengths) for of in values]
