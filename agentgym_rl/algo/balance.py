"""Even parts and full bins of rows, by length (no torch, so the controller may use it)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def balance(sizes: Sequence[int], num_parts: int) -> list[list[int]]:
    """Indices of `sizes` in `num_parts` parts of nearly equal sum; parts may be empty.

    Largest differencing, Karmarkar & Karp 1982: the two partial solutions that differ most are
    merged, the heaviest part of one with the lightest of the other. Deterministic.
    """
    if num_parts < 1:
        raise ValueError(f"num_parts is {num_parts}, expected at least 1")
    # Heap entries: (−spread, tie-breaker, parts sorted by sum), a part being (sum, indices).
    heap = [
        (-size, index, [(0, [])] * (num_parts - 1) + [(size, [index])])
        for index, size in enumerate(sizes)
    ]
    heapq.heapify(heap)
    while len(heap) > 1:
        _, first, a = heapq.heappop(heap)
        _, second, b = heapq.heappop(heap)
        merged = [(x + y, p + q) for (x, p), (y, q) in zip(a, reversed(b), strict=True)]
        merged.sort(key=lambda part: (part[0], part[1]))
        heapq.heappush(heap, (merged[0][0] - merged[-1][0], min(first, second), merged))
    parts = heap[0][2] if heap else [(0, [])] * num_parts
    return [sorted(indices) for _, indices in parts]


def fill_bins(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of `lengths` in few bins whose sums stay within `budget`, evenly filled.

    As many bins as first-fit decreasing needs; where `balance` can spread the rows over that
    many without breaking the budget, it does.

    Raises:
        ValueError: one length exceeds the budget.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[index]
        if length > budget:
            raise ValueError(f"row {index} has {length} tokens, the budget is {budget}")
        for place, free in enumerate(room):
            if length <= free:
                bins[place].append(index)
                room[place] -= length
                break
        else:
            bins.append([index])
            room.append(budget - length)
    even = balance(lengths, len(bins)) if bins else []
    if all(sum(lengths[i] for i in part) <= budget for part in even):
        return even
    return [sorted(part) for part in bins]
