"""Paths over edges, in trees and in grids."""

from __future__ import annotations

from .family import Args, Draw, Family, family


@family(
    "graphs",
    back=range(2, 5),
    limit=range(4, 7),
    inputs=lambda draw: (
        draw.size // 2 + 1,
        draw.pairs(draw.size // 2 + 1, draw.integer(draw.size // 2, draw.size), near=4),
    ),
    edges=lambda draw: [
        (0, []),
        (1, [[0, 0]]),
        (3, [[1, 0], [1, 0]]),
        (9, [[i, i + 1] for i in range(8)]),
        (6, [[i + 1, i] for i in range(5)]),
        (5, [[0, 1], [1, 2], [2, 3], [3, 4], [4, 0]]),
    ],
)
def find_distances(nodes: int, edges: list[list[int]], *, back: int, limit: int) -> list[int]:
    """A graph has nodes 0 to `nodes` - 1. For each [a, b] of `edges` it takes 1 minute to go from a
    to b and {back} minutes to go from b to a. Return for each node, in order, the least time to
    get there from node 0, or -1 if that is more than {limit} minutes or there is no way.
    """
    import heapq

    steps: list[list[tuple[int, int]]] = [[] for _ in range(nodes)]
    for a, b in edges:
        steps[a].append((b, 1))
        steps[b].append((a, back))
    times = [-1] * nodes
    waiting = [(0, 0)] if nodes else []
    while waiting:
        time, node = heapq.heappop(waiting)
        if times[node] >= 0 or time > limit:
            continue
        times[node] = time
        for other, more in steps[node]:
            heapq.heappush(waiting, (time + more, other))
    return times


def _path(length: int) -> Args:
    """Return a path: one node after the other."""
    return length + 1, [[i, i + 1, 2] for i in range(length)]


@family(
    "graphs",
    most=range(2, 6),
    ways=("from a to b", "in both directions"),
    inputs=lambda draw: (
        draw.size // 5 + 2,
        draw.weighted_pairs(draw.size // 5 + 2, draw.size, near=3),
    ),
    edges=lambda draw: [
        (1, []),
        (1, [[0, 0, 3]]),
        (2, []),
        (2, [[0, 1, 9], [0, 1, 4], [1, 0, 2]]),
        _path(int(draw.parameters["most"])),
        _path(int(draw.parameters["most"]) + 1),
    ],
)
def find_cheapest_route(nodes: int, edges: list[list[int]], *, most: int, ways: str) -> int:
    """A graph has nodes 0 to `nodes` - 1, at least one. Each [a, b, w] of `edges` can be used
    {ways}, at a cost of w > 0 each time. Return the least cost of going from node 0 to the last
    node over at most {most} edges (0 if they are the same node), or -1 if that is impossible.
    """
    costs: list[int | None] = [0] + [None] * (nodes - 1)
    for _ in range(most):
        after = list(costs)
        for a, b, w in edges:
            for x, y in [(a, b), (b, a)] if ways == "in both directions" else [(a, b)]:
                old, new = costs[x], after[y]
                if old is not None and (new is None or old + w < new):
                    after[y] = old + w
        costs = after
    return -1 if costs[-1] is None else costs[-1]


def _needs(draw: Draw) -> Args:
    """Return tasks that mostly need earlier ones, in another order than that of their numbers."""
    order = draw.rng.sample(range(draw.size), draw.size)
    pairs = draw.pairs(draw.size, draw.size, near=6, loops=False)
    if draw.integer(0, 2):
        pairs = [sorted(pair) for pair in pairs]
    return draw.size, [[order[a], order[b]] for a, b in pairs]


@family(
    "graphs",
    width=range(1, 5),
    which=("lowest", "highest"),
    inputs=_needs,
    edges=lambda draw: [
        (0, []),
        (9, []),
        (2, [[1, 1]]),
        (4, [[0, 1], [0, 1], [3, 2]]),
        (5, [[0, 1], [1, 2], [2, 1], [2, 3]]),
        (4, [[3, 2], [1, 0], [2, 1]]),
    ],
)
def plan_days(nodes: int, edges: list[list[int]], *, width: int, which: str) -> list[int]:
    """Tasks are numbered 0 to `nodes` - 1. Each [a, b] of `edges` says that a must be done on an
    earlier day than b. Each day, of the tasks that can be done, those with the {which} numbers are
    done, at most {width} of them. Return for each task the number of its day, from 1, or -1 if it
    can never be done.
    """
    days = [-1] * nodes
    for day in range(1, nodes + 1):
        ready = [
            task
            for task in range(nodes)
            if days[task] < 0 and all(days[a] > 0 for a, b in edges if b == task)
        ]
        if which == "highest":
            ready.reverse()
        for task in ready[:width]:
            days[task] = day
    return days


@family(
    "graphs",
    low=range(1, 4),
    high=range(3, 6),
    inputs=lambda draw: (
        [-1 if i == 0 else draw.integer(max(0, i - 4), i - 1) for i in range(draw.size)],
    ),
    edges=lambda draw: [
        ([],),
        ([-1],),
        ([-1, *range(8)],),
        ([-1, 0, 0, 0],),
        ([-1, 0, 0, 1, 2, 3, 4, 5, 6],),
    ],
)
def count_descendants(parents: list[int], *, low: int, high: int) -> list[int]:
    """`parents` describes a tree: parents[0] is -1, as node 0 is the root, and each node i > 0
    hangs one level below node parents[i], which is smaller than i. Return for each node, in
    order, how many of the nodes below it are {low} to {high} levels below it.
    """
    counts = [0] * len(parents)
    for node in range(len(parents)):
        above, levels = parents[node], 1
        while above >= 0:
            if low <= levels <= high:
                counts[above] += 1
            above, levels = parents[above], levels + 1
    return counts


def _fire(draw: Draw) -> Args:
    """Return a grid with a few fires and a few walls."""
    rows, columns = (draw.size + 2) // 3, 1 + draw.size // 3
    return ([draw.word("........####*", length=columns) for _ in range(rows)],)


@family(
    "graphs",
    minutes=range(1, 5),
    neighbours=("4 neighbours (left, right, above, below)", "8 neighbours (corners included)"),
    inputs=_fire,
    edges=lambda draw: [
        ([],),
        (["*"],),
        (["*........"],),
        (["#.", ".*"],),
        (["*#.", "##.", "..."],),
        (["...", "...", "...", "...", "..*"],),
    ],
)
def spread_fire(grid: list[str], *, minutes: int, neighbours: str) -> list[str]:
    """In `grid`, "*" burns, "." can burn and "#" cannot. Each minute, the fire spreads from
    every burning cell to those of its {neighbours} that can burn. Return the grid after {minutes}
    minute(s).
    """
    cells = [list(row) for row in grid]
    for _ in range(minutes):
        burning = [(i, j) for i, row in enumerate(cells) for j, c in enumerate(row) if c == "*"]
        for i, j in burning:
            for y in range(max(0, i - 1), min(len(cells), i + 2)):
                for x in range(max(0, j - 1), min(len(cells[0]), j + 2)):
                    near = x == j or y == i or neighbours.startswith("8")
                    if near and cells[y][x] == ".":
                        cells[y][x] = "*"
    return ["".join(row) for row in cells]


@family(
    "graphs",
    length=range(2, 6),
    ways=("from a to b", "in both directions"),
    inputs=lambda draw: (
        draw.size // 3,
        draw.pairs(draw.size // 3, draw.size * 2 // 3, loops=False),
    ),
    edges=lambda draw: [
        (0, []),
        (1, []),
        (2, [[0, 1]]),
        (2, [[0, 1], [1, 0], [0, 1]]),
        (7, [[i, i + 1] for i in range(6)]),
        (4, [[0, 1], [1, 2], [2, 0]]),
    ],
)
def count_walks(nodes: int, edges: list[list[int]], *, length: int, ways: str) -> list[int]:
    """A graph has nodes 0 to `nodes` - 1. Each [a, b] of `edges`, a not b, can be used {ways}; an
    edge that occurs twice counts as two. Return for each node, in order, the number of walks that
    start there and take exactly {length} steps over edges, the same ones or others.
    """
    walks = [1] * nodes
    for _ in range(length):
        after = [0] * nodes
        for a, b in edges:
            after[a] += walks[b]
            if ways == "in both directions":
                after[b] += walks[a]
        walks = after
    return walks


FAMILIES: tuple[Family, ...] = (
    find_distances,
    find_cheapest_route,
    plan_days,
    count_descendants,
    spread_fire,
    count_walks,
)
