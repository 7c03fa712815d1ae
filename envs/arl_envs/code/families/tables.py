"""Lists of rows: tables of whole numbers, and ranges of them."""

from __future__ import annotations

from .family import Draw, Family, family


def _table(draw: Draw, low: int, high: int) -> list[list[int]]:
    """Return a matrix of about `size` cells; no row is empty."""
    columns = draw.integer(1, 6)
    return draw.matrix((draw.size + columns - 1) // columns, columns, low, high)


@family(
    "arrays",
    corner=("top left", "top right", "bottom left", "bottom right"),
    turn=("clockwise", "counterclockwise"),
    inputs=lambda draw: (_table(draw, 0, 99),),
    edges=lambda draw: [
        ([],),
        ([[7]],),
        ([[1, 2, 3, 4]],),
        ([[1], [2], [3]],),
        ([[1, 2, 3], [4, 5, 6], [7, 8, 9]],),
    ],
    largest=30,
)
def read_spiral(matrix: list[list[int]], *, corner: str, turn: str) -> list[int]:
    """Start in the {corner} corner of `matrix` and walk {turn} along the border, then on inwards in
    a spiral, until every cell is read once. Return the values in that order.
    """
    rows = [list(row) for row in matrix]
    if "bottom" in corner:
        rows.reverse()
    if "right" in corner:
        rows = [row[::-1] for row in rows]
    mirrored = ("bottom" in corner) != ("right" in corner)
    if mirrored == (turn == "clockwise"):
        rows = [list(column) for column in zip(*rows, strict=True)]
    result: list[int] = []
    while rows:
        result += rows.pop(0)
        rows = [list(column) for column in zip(*rows, strict=True)][::-1]
    return result


@family(
    "arrays",
    relation=("larger", "smaller"),
    margin=(1, 2, 3),
    around=("left and right", "above and below", "above, below, left and right"),
    inputs=lambda draw: (_table(draw, 0, 7),),
    edges=lambda draw: [
        ([],),
        ([[5]],),
        ([[4, 4], [4, 4]],),
        ([[0, 1, 3], [6, 4, 6], [0, 1, 0]],),
        ([[0, 1], [2, 3], [0, 3]],),
    ],
    largest=30,
)
def list_peaks(
    matrix: list[list[int]], *, relation: str, margin: int, around: str
) -> list[list[int]]:
    """Return [row, column], counted from 0, of every cell of `matrix` that is {relation} by at
    least {margin} than each of its neighbours {around} (those that there are; with none, the cell
    counts). List them row by row, from left to right.
    """
    steps = [(0, 1), (0, -1)] if "left" in around else []
    if "above" in around:
        steps += [(1, 0), (-1, 0)]
    sign = 1 if relation == "larger" else -1
    result: list[list[int]] = []
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            cells = [(i + down, j + right) for down, right in steps]
            others = [matrix[k][m] for k, m in cells if 0 <= k < len(matrix) and 0 <= m < len(row)]
            if all(sign * (value - other) >= margin for other in others):
                result.append([i, j])
    return result


def _ranges(draw: Draw) -> list[list[int]]:
    starts = draw.integers(-20, 5 * draw.size)
    return [[start, start + draw.integer(0, 9)] for start in starts]


@family(
    "arrays",
    gap=range(0, 5),
    least=(1, 3, 5, 8),
    inputs=lambda draw: (_ranges(draw),),
    edges=lambda draw: [
        ([],),
        ([[2, 2 + draw.number("least")]],),
        ([[2, 1 + draw.number("least")]],),
        ([[9 + draw.number("gap"), 20], [0, 9]],),
        ([[10 + draw.number("gap"), 20], [0, 9]],),
        ([[0, 20], [3, 4], [20, 22], [30, 40], [30, 31]],),
    ],
)
def merge_ranges(ranges: list[list[int]], *, gap: int, least: int) -> list[list[int]]:
    """Each of `ranges` is [start, end] with start <= end. As long as two of them overlap or one
    starts at most {gap} after the end of the other, merge them into one that covers both. Return
    those left with end - start >= {least}, sorted.
    """
    merged: list[list[int]] = []
    for start, end in sorted(ranges):
        if merged and start - merged[-1][1] <= gap:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return [[start, end] for start, end in merged if end - start >= least]


FAMILIES: tuple[Family, ...] = (read_spiral, list_peaks, merge_ranges)
