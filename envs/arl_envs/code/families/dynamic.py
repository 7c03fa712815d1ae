"""Best choices that are built from smaller ones."""

from __future__ import annotations

from .family import Args, Draw, Family, family


@family(
    "dynamic programming",
    low=range(1, 4),
    high=range(4, 8),
    inputs=lambda draw: (draw.integers(-5, 20),),
    edges=lambda draw: [
        ([],),
        ([-2, -3],),
        ([-1, int(draw.parameters["high"]) - 1],),
        ([1, 1 + int(draw.parameters["low"]), 1 + 2 * int(draw.parameters["low"])],),
        ([1, 1 + int(draw.parameters["high"])],),
        ([-2, -2 + int(draw.parameters["high"]), 2 * int(draw.parameters["high"]) - 1],),
    ],
)
def find_best_climb(numbers: list[int], *, low: int, high: int) -> int:
    """Choose elements of `numbers`, from left to right, not necessarily neighbours, so that each
    chosen one is greater than the chosen one before it by at least {low} and at most {high}.
    Return the largest possible sum of the chosen elements (0 if none is chosen).
    """
    best: list[int] = []
    for i, number in enumerate(numbers):
        before = [best[j] for j in range(i) if low <= number - numbers[j] <= high]
        best.append(number + max(0, max(before, default=0)))
    return max(0, max(best, default=0))


def _two_words(draw: Draw) -> Args:
    """Return a word and another one: the first one after a few edits, or an unrelated one."""
    first = draw.word("abc", length=draw.size // 2)
    pieces = [draw.rng.choice([c, c, c, c, c * 2, "", draw.word("abc", length=1)]) for c in first]
    other = draw.word("abc", length=draw.integer(0, draw.size // 2))
    return first, draw.rng.choice(["".join(pieces), other])


@family(
    "dynamic programming",
    insert=range(1, 4),
    delete=range(1, 4),
    change=(1, 2),
    inputs=_two_words,
    edges=lambda draw: [
        ("", ""),
        ("", "ab"),
        ("abc", ""),
        ("a", "b"),
        ("ab", "ba"),
        ("ab", "b"),
    ],
)
def find_edit_cost(first: str, second: str, *, insert: int, delete: int, change: int) -> int:
    """Return the least total cost of turning `first` into `second`, where it costs {insert} to
    insert a letter anywhere, {delete} to delete a letter, and {change} to change a letter into
    another one.
    """
    costs = [j * insert for j in range(len(second) + 1)]
    for letter in first:
        row = [costs[0] + delete]
        for j, other in enumerate(second):
            kept = costs[j] if letter == other else costs[j] + change
            row.append(min(kept, costs[j + 1] + delete, row[j] + insert))
        costs = row
    return costs[-1]


@family(
    "dynamic programming",
    capacity=(8, 13, 19, 26),
    copies=(1, 2, 3),
    inputs=lambda draw: (
        draw.integers(1, int(draw.parameters["capacity"]) + 1, length=draw.size // 2),
        draw.integers(1, 30, length=draw.size // 2),
    ),
    edges=lambda draw: [
        ([], []),
        ([int(draw.parameters["capacity"])], [5]),
        ([int(draw.parameters["capacity"]) + 1], [5]),
        ([4, 4, 4], [1, 2, 3]),
        ([1, 2], [1, 3]),
    ],
)
def pack_bag(weights: list[int], values: list[int], *, capacity: int, copies: int) -> int:
    """An item of kind i weighs weights[i] and is worth values[i]. There are {copies} items of
    each kind, and a bag that holds a total weight of at most {capacity}. Return the largest total
    value that the bag can hold.
    """
    best = [0] * (capacity + 1)
    for weight, value in zip(weights, values, strict=True):
        for _ in range(copies):
            for room in range(capacity, weight - 1, -1):
                best[room] = max(best[room], best[room - weight] + value)
    return best[capacity]


@family(
    "dynamic programming",
    gap=range(2, 6),
    most=range(2, 5),
    inputs=lambda draw: (draw.integers(-9, 20),),
    edges=lambda draw: [
        ([],),
        ([-4],),
        ([-2, -1, -3],),
        ([7] * (int(draw.parameters["gap"]) + 1),),
        ([7] * int(draw.parameters["gap"]),),
        ([1] * (int(draw.parameters["gap"]) * int(draw.parameters["most"]) + 1),),
    ],
)
def pick_apart(numbers: list[int], *, gap: int, most: int) -> int:
    """Choose at most {most} elements of `numbers` such that the positions of any two chosen ones
    differ by at least {gap}. Return the largest possible sum of the chosen elements (0 if none
    is chosen).
    """
    best = [0] * (len(numbers) + 1)
    for _ in range(most):
        after = [0]
        for i, number in enumerate(numbers):
            after.append(max(after[i], number + best[max(0, i + 1 - gap)]))
        best = after
    return best[-1]


@family(
    "dynamic programming",
    left=range(1, 4),
    right=range(1, 4),
    inputs=lambda draw: (draw.integers(1, 20),),
    edges=lambda draw: [([],), ([4],), ([3, 5],), ([1, 2, 3],), ([3, 2, 1],), ([5, 1, 1, 5],)],
    largest=14,
)
def join_piles(piles: list[int], *, left: int, right: int) -> int:
    """`piles` are the sizes of piles in a row. Two neighbouring piles of sizes x (left) and y
    (right) can be joined into one pile of size x + y in their place, at a cost of
    {left} * x + {right} * y. Return the least total cost of joining all into one pile (0 if there
    are fewer than two).
    """
    n = len(piles)
    sums = [0]
    for size in piles:
        sums.append(sums[-1] + size)
    cost = [[0] * (n + 1) for _ in range(n + 1)]
    for start in range(n - 2, -1, -1):
        for end in range(start + 2, n + 1):
            cost[start][end] = min(
                cost[start][k]
                + cost[k][end]
                + left * (sums[k] - sums[start])
                + right * (sums[end] - sums[k])
                for k in range(start + 1, end)
            )
    return cost[0][n]


def _jobs(draw: Draw) -> Args:
    """Return short jobs within a month."""
    starts = draw.integers(0, 30, length=draw.size // 2)
    return ([[start, start + draw.integer(1, 8), draw.integer(1, 30)] for start in starts],)


@family(
    "dynamic programming",
    rest=range(8),
    inputs=_jobs,
    edges=lambda draw: [
        ([],),
        ([[3, 5, 4]],),
        ([[9, 10, 2], [0, 2, 5], [2 + int(draw.parameters["rest"]), 40, 3]],),
        ([[0, 2, 5], [1 + int(draw.parameters["rest"]), 20, 3]],),
        ([[0, 9, 4], [0, 9, 4], [20, 21, 1]],),
        ([[20, 29, 9], [0, 40, 10], [0, 4, 3]],),
    ],
)
def plan_jobs(jobs: list[list[int]], *, rest: int) -> int:
    """Each [start, end, pay] of `jobs` lasts from time start to time end (start < end) and earns
    pay. Choose jobs such that each one starts at least {rest} after the end of the chosen one
    before it. Return the largest possible total pay (0 if there are no jobs).
    """
    done: list[tuple[int, int]] = []
    for start, end, pay in sorted(jobs):
        before = [total for other, total in done if other + rest <= start]
        done.append((end, pay + max(before, default=0)))
    return max((total for _, total in done), default=0)


@family(
    "dynamic programming",
    most=range(2, 6),
    side=("the left end", "either end"),
    inputs=lambda draw: (draw.integers(-9, 12),),
    edges=lambda draw: [
        ([],),
        ([-6],),
        ([5, -8, 9],),
        ([-1] * (int(draw.parameters["most"]) + 1),),
        ([2] * (int(draw.parameters["most"]) + 1),),
        ([1, 9, 2],),
    ],
    largest=14,
)
def play_row(numbers: list[int], *, most: int, side: str) -> int:
    """Two players take turns until `numbers` is empty. A turn removes 1 to {most} numbers from
    {side} of the row, all from the same end, and the player scores their sum. Both play as well
    as possible for their own score minus the other's. Return the first player's score minus the
    second's (0 for an empty row).
    """
    n = len(numbers)
    lead = [[0] * (n + 1) for _ in range(n + 1)]
    for start in range(n - 1, -1, -1):
        for end in range(start + 1, n + 1):
            options: list[int] = []
            for k in range(1, min(most, end - start) + 1):
                options.append(sum(numbers[start : start + k]) - lead[start + k][end])
                if side == "either end":
                    options.append(sum(numbers[end - k : end]) - lead[start][end - k])
            lead[start][end] = max(options)
    return lead[0][n]


FAMILIES: tuple[Family, ...] = (
    find_best_climb,
    find_edit_cost,
    pack_bag,
    pick_apart,
    join_piles,
    plan_jobs,
    play_row,
)
