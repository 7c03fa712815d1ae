"""Numbers of ways, counted from those of smaller parts, of the topic dynamic programming."""

from __future__ import annotations

from .family import Args, Draw, Family, family


def _maze(draw: Draw) -> Args:
    """Return a grid that mostly has free corners."""
    rows, columns = (draw.integer(1, 2 + draw.size // 4) for _ in range(2))
    cells = [list(draw.word(".....#", length=columns)) for _ in range(rows)]
    if draw.integer(0, 9):
        cells[0][0] = cells[-1][-1] = "."
    return (["".join(row) for row in cells],)


@family(
    "dynamic programming",
    reach=range(1, 5),
    moves=("right or down", "right, down or diagonally (right and down)"),
    inputs=_maze,
    edges=lambda draw: [
        ([],),
        (["."],),
        (["#"],),
        (["......"],),
        (["...", "...", "..#"],),
        ([".#", "#."],),
    ],
)
def count_paths(grid: list[str], *, reach: int, moves: str) -> int:
    """In `grid`, "." is a free cell and "#" a wall. A piece goes from the top left cell to the
    bottom right one. Each move takes it {moves} by 1 to {reach} cells, over any walls, onto a
    free cell. Count the different ways: 1 if there is one cell and it is free, 0 if either
    corner is a wall or the grid is empty.
    """
    ways = [[0] * len(row) for row in grid]
    for i, row in enumerate(grid):
        for j, cell in enumerate(row):
            if cell == "#":
                continue
            if i == 0 and j == 0:
                ways[i][j] = 1
            for k in range(1, reach + 1):
                if k <= i:
                    ways[i][j] += ways[i - k][j]
                if k <= j:
                    ways[i][j] += ways[i][j - k]
                if "diagonally" in moves and k <= i and k <= j:
                    ways[i][j] += ways[i - k][j - k]
    return ways[-1][-1] if grid else 0


def _coins(draw: Draw) -> Args:
    """Return coins and an amount that can often be paid."""
    coins = draw.rng.sample(range(1, 11), min(draw.size, 2 + draw.size // 4))
    paid = [draw.integer(0, int(draw.parameters["limit"])) * coin for coin in coins]
    return coins, min(50, sum(paid) + draw.rng.choice([0, 0, 0, 1]))


@family(
    "dynamic programming",
    limit=range(1, 9),
    inputs=_coins,
    edges=lambda draw: [
        ([], 0),
        ([], 3),
        ([3], 3 * int(draw.parameters["limit"])),
        ([3], 3 * int(draw.parameters["limit"]) + 3),
        ([4, 6], 5),
        ([1, 2, 3], 6),
    ],
)
def count_change(coins: list[int], amount: int, *, limit: int) -> int:
    """`coins` lists different positive coin values. Count the ways to pay exactly `amount` with
    each value used at most {limit} times; the order of the coins does not matter. There is one
    way to pay 0.
    """
    ways = [1] + [0] * amount
    for coin in coins:
        ways = [
            sum(ways[total - coin * k] for k in range(limit + 1) if coin * k <= total)
            for total in range(amount + 1)
        ]
    return ways[amount]


@family(
    "dynamic programming",
    highest=(12, 19, 26, 35, 48, 99, 107, 123),
    inputs=lambda draw: (draw.word("11111122222334567890", length=draw.size * 2 // 3),),
    edges=lambda draw: [
        ("",),
        ("0",),
        (str(draw.parameters["highest"]),),
        (str(int(draw.parameters["highest"]) + 1),),
        ("1001",),
        ("110120",),
    ],
)
def count_decodings(digits: str, *, highest: int) -> int:
    """Split the digits of `digits` into numbers from 1 to {highest}, none of them written with a
    leading zero, and every digit used. Return the number of ways to do that: 1 for an empty
    string, 0 if it cannot be done.
    """
    ways = [1]
    for end in range(1, len(digits) + 1):
        ways.append(
            sum(
                ways[start]
                for start in range(max(0, end - 3), end)
                if digits[start] != "0" and int(digits[start:end]) <= highest
            )
        )
    return ways[-1]


def _blanked(draw: Draw) -> Args:
    """Return a text with few runs that are too long, in which most letters are hidden."""
    letters, longest = str(draw.parameters["letters"]), int(draw.parameters["longest"])
    text = ""
    for _ in range(draw.size):
        fresh = draw.rng.choice([letter for letter in letters if not text.endswith(letter)])
        full = text.endswith(text[-1:] * longest) if text else False
        keep = text and (not full or not draw.integer(0, 40)) and draw.integer(0, 2)
        text += text[-1] if keep else fresh
    return ("".join("?" if draw.integer(0, 2) else letter for letter in text),)


@family(
    "dynamic programming",
    letters=("ab", "abc", "abcd"),
    longest=range(2, 5),
    inputs=_blanked,
    edges=lambda draw: [
        ("",),
        ("?",),
        ("a" * int(draw.parameters["longest"]),),
        ("a" * int(draw.parameters["longest"]) + "a",),
        ("?" * int(draw.parameters["longest"]) + "a?",),
        ("????????",),
    ],
    largest=16,
)
def count_fillings(pattern: str, *, letters: str, longest: int) -> int:
    """Each ? in `pattern` is to be replaced by one of the letters {letters} (the same or
    different ones), so that no letter occurs more than {longest} times in a row anywhere. Return
    the number of ways: 1 if there is no ? and nothing is wrong, 0 if it cannot be done.
    """
    ways = {("", 0): 1}
    for place in pattern:
        after: dict[tuple[str, int], int] = {}
        for (last, run), count in ways.items():
            for letter in letters if place == "?" else place:
                length = run + 1 if letter == last else 1
                if length <= longest:
                    after[letter, length] = after.get((letter, length), 0) + count
        ways = after
    return sum(ways.values())


FAMILIES: tuple[Family, ...] = (
    count_paths,
    count_change,
    count_decodings,
    count_fillings,
)
