"""The days of the calendar."""

LENGTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def is_leap(year):
    """Return whether a year has 366 days."""
    if year % 400 == 0:
        return True
    return year % 4 == 0 and year % 100 != 0


def days_in(year, month):
    """Return how many days a month has; raise ValueError for a month that does not exist."""
    if month < 1 or month > 12:
        raise ValueError("a month is from 1 to 12")
    if month == 2 and is_leap(year):
        return 29
    return LENGTHS[month - 1]


def day_of_year(date):
    """Return the number of a day in its year, from 1 on."""
    year, month, day = date
    total = day
    for earlier in range(1, month):
        total += days_in(year, earlier)
    return total


def after(date, days):
    """Return the date that is `days` days later."""
    year, month, day = date
    day += days
    while day > days_in(year, month):
        day -= days_in(year, month)
        month += 1
        if month > 12:
            month = 1
            year += 1
    return year, month, day


def between(first, last):
    """Return how many days it is from a date to a later one; below 0 if it is earlier."""
    if first > last:
        return -between(last, first)
    total = day_of_year(last) - day_of_year(first)
    for year in range(first[0], last[0]):
        total += 366 if is_leap(year) else 365
    return total
