"""The split of rows into even parts and full bins, by length (no torch: the controller uses it)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def balance(sizes: Sequence[int], num_parts: int) -> list[list[int]]:
    """Return the indices of `sizes` in `num_parts` parts of nearly equal sum; parts may be empty.

    The method is largest differencing, Karmarkar & Karp 1982: the two partial solutions with the
    largest spread are merged, the heaviest part of one with the lightest of the other.
    Deterministic.
    """
    if num_parts < 1:
        raise ValueError(f"num_parts is {num_parts}, expected at least 1")
    # Heap entries are (−spread, tie-breaker, parts sorted by sum); a part is (sum, indices).
    nothing: tuple[int, list[int]] = (0, [])
    heap = [
        (-size, index, [nothing] * (num_parts - 1) + [(size, [index])])
        for index, size in enumerate(sizes)
    ]
    heapq.heapify(heap)
    while len(heap) > 1:
        _, first, a = heapq.heappop(heap)
        _, second, b = heapq.heappop(heap)
        merged = [(x + y, p + q) for (x, p), (y, q) in zip(a, reversed(b), strict=True)]
        merged.sort(key=lambda part: (part[0], part[1]))
        heapq.heappush(heap, (merged[0][0] - merged[-1][0], min(first, second), merged))
    parts = heap[0][2] if heap else [nothing] * num_parts
    return [sorted(indices) for _, indices in parts]


def check_fit(lengths: Sequence[int], budget: int) -> None:
    """Check that every row fits into the budget of a bin; else raise ValueError."""
    for index, length in enumerate(lengths):
        if length > budget:
            raise ValueError(f"row {index} has {length} tokens, the budget is {budget}")


def fill_bins(lengths: Sequence[int], budget: int, *, least: int = 1) -> list[list[int]]:
    """Return the indices of `lengths` in few bins whose sums stay within `budget`, evenly filled.

    The number of bins is that of first-fit decreasing, or `least` if that is more and there are so
    many rows. `balance` spreads the rows over so many bins, if its sums stay within the budget.

    Raises:
        ValueError: one length exceeds the budget.
    """
    check_fit(lengths, budget)
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[index]
        for place, free in enumerate(room):
            if length <= free:
                bins[place].append(index)
                room[place] -= length
                break
        else:
            bins.append([index])
            room.append(budget - length)
    count = max(len(bins), min(least, len(lengths)))
    even = [part for part in balance(lengths, count) if part] if bins else []
    if all(sum(lengths[i] for i in part) <= budget for part in even):
        return even
    return [sorted(part) for part in bins]
