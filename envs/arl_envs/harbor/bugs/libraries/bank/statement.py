"""Statements as text."""


def money(cents):
    """Return an amount as text, such as -12.05."""
    sign = "-" if cents < 0 else ""
    cents = abs(cents)
    return f"{sign}{cents // 100}.{cents % 100:02d}"


def statement(bookings, start=0):
    """Return the lines of a statement: each booking with the balance after it."""
    lines = []
    balance = start
    for kind, amount in bookings:
        if kind in ("in", "interest"):
            balance += amount
        else:
            balance -= amount
        lines.append(f"{kind} {money(amount)} {money(balance)}")
    return lines


def summary(bookings, known=None):
    """Return the sums by kind, added to those already known."""
    if known is None:
        known = {}
    for kind, amount in bookings:
        known[kind] = known.get(kind, 0) + amount
    return known
