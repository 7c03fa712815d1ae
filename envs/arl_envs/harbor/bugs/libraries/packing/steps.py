"""Lists of numbers as differences, and as bytes of seven bits."""


def differences(numbers, first=0):
    """Return each number minus the one before it; the one before the first is `first`."""
    found = []
    last = first
    for number in numbers:
        found.append(number - last)
        last = number
    return found


def sums(steps, first=0):
    """Return the numbers whose differences are given."""
    found = []
    total = first
    for step in steps:
        total += step
        found.append(total)
    return found


def to_bytes(number):
    """Return a number's bytes: seven bits each, low ones first, 128 on all but the last."""
    if number < 0:
        raise ValueError("below 0")
    found = []
    while number >= 128:
        found.append(number % 128 + 128)
        number = number // 128
    found.append(number)
    return found


def from_bytes(data):
    """Return the numbers in a list of bytes; raise ValueError if the last one is not whole."""
    numbers = []
    value = 0
    factor = 1
    for byte in data:
        value += byte % 128 * factor
        factor *= 128
        if byte < 128:
            numbers.append(value)
            value = 0
            factor = 1
    if factor > 1:
        raise ValueError("not whole")
    return numbers


def zigzag(number):
    """Return 0, 1, 2, 3, 4 for 0, -1, 1, -2, 2."""
    if number < 0:
        return -2 * number - 1
    return 2 * number
