"""Tables of plain text."""

from .lines import shorten, wrap


def widths(rows):
    """Return the width of each column; rows may be of unequal length."""
    found = []
    for row in rows:
        for place, cell in enumerate(row):
            if place >= len(found):
                found.append(0)
            found[place] = max(found[place], len(cell))
    return found


def render(rows, limit=12, gap=2):
    """Return a table's lines: numbers to the right, words to the left, cells cut at `limit`."""
    cut = [[shorten(cell, limit) for cell in row] for row in rows]
    sizes = widths(cut)
    lines = []
    for row in cut:
        cells = []
        for cell, size in zip(row, sizes, strict=False):
            if cell.isdigit():
                cells.append(cell.rjust(size))
            else:
                cells.append(cell.ljust(size))
        lines.append((" " * gap).join(cells).rstrip())
    return lines


def paragraph_rows(name, text, width):
    """Return rows of a name and a wrapped text; the name stands in the first row only."""
    rows = []
    for number, line in enumerate(wrap(text, width)):
        rows.append([name if number == 0 else "", line])
    return rows
