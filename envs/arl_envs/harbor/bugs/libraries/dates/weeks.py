"""Days of the week, written dates."""

from .days import after, between, days_in

NAMES = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
MONDAY = (2024, 1, 1)


def weekday(date):
    """Return the name of a date's day of the week."""
    return NAMES[between(MONDAY, date) % 7]


def next_weekday(date, name):
    """Return the first later date with that day of the week; raise ValueError for other names."""
    wanted = NAMES.index(name)
    here = NAMES.index(weekday(date))
    return after(date, (wanted - here - 1) % 7 + 1)


def parse(text):
    """Return the date in a text such as 2024-02-29; raise ValueError if there is no such day."""
    parts = text.split("-")
    if len(parts) != 3:
        raise ValueError("a date has three parts")
    year, month, day = [int(part) for part in parts]
    if day < 1 or day > days_in(year, month):
        raise ValueError("no such day")
    return year, month, day


def written(date, style="-"):
    """Return a date as text: year first with "-", day first with ".", month first with "/"."""
    year, month, day = date
    if style == ".":
        return f"{day:02d}.{month:02d}.{year}"
    if style == "/":
        return f"{month}/{day}/{year % 100:02d}"
    return f"{year}-{month:02d}-{day:02d}"


def workdays(first, last):
    """Return how many days from first up to last, without last, are no Saturday or Sunday."""
    count = 0
    for step in range(between(first, last)):
        if weekday(after(first, step)) not in ("Sat", "Sun"):
            count += 1
    return count
