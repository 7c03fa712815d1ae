"""Amounts as people say them."""

from .convert import LENGTHS, TIMES, convert, parse


def duration(seconds, most=2):
    """Return a time in its `most` largest units, such as "1 h 5 min"."""
    parts = []
    for unit in ("d", "h", "min", "s"):
        count = seconds // TIMES[unit]
        seconds = seconds % TIMES[unit]
        if count > 0 and len(parts) < most:
            parts.append(f"{count} {unit}")
    return " ".join(parts) if parts else "0 s"


def clock(minutes):
    """Return the time of day, such as 09:05, so many minutes after midnight."""
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}"


def largest_unit(amount, unit):
    """Return an amount of a length in the largest unit in which it is whole."""
    size = amount * LENGTHS[unit]
    best = (amount, unit)
    for name, factor in LENGTHS.items():
        if size % factor == 0 and factor >= LENGTHS[best[1]]:
            best = (size // factor, name)
    return best


def total(texts, unit):
    """Return the sum of texts such as "3 m" in a unit."""
    result = 0
    for text in texts:
        amount, own = parse(text)
        result += convert(amount, own, unit)
    return result


def compare(first, second):
    """Return -1, 0 or 1, as the first amount is smaller, equal or larger."""
    one = convert(*parse(first), "mm" if first.endswith("m") else "s")
    other = convert(*parse(second), "mm" if second.endswith("m") else "s")
    if one == other:
        return 0
    return -1 if one < other else 1
