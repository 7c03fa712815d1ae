"""Amounts in another unit."""

LENGTHS = {"mm": 1, "cm": 10, "m": 1000, "km": 1000000}
TIMES = {"s": 1, "min": 60, "h": 3600, "d": 86400}


def table_of(unit):
    """Return the table in which a unit is; raise KeyError if there is none."""
    for table in (LENGTHS, TIMES):
        if unit in table:
            return table
    raise KeyError(unit)


def convert(amount, unit, other):
    """Return an amount in another unit, rounded to the nearest; ValueError: not of one kind."""
    table = table_of(unit)
    if other not in table:
        raise ValueError("not of one kind")
    return (amount * table[unit] * 2 + table[other]) // (table[other] * 2)


def parse(text):
    """Return (amount, unit) of a text such as "12 km" or "12km"."""
    digits = ""
    for letter in text:
        if letter.isdigit():
            digits += letter
        elif letter != " ":
            break
    unit = text[len(digits) :].strip()
    if not digits:
        raise ValueError(text)
    table_of(unit)
    return int(digits), unit


def celsius(fahrenheit):
    """Return degrees Celsius, rounded down."""
    return (fahrenheit - 32) * 5 // 9
