"""Roman numerals."""

SIGNS = [
    (1000, "M"),
    (900, "CM"),
    (500, "D"),
    (400, "CD"),
    (100, "C"),
    (90, "XC"),
    (50, "L"),
    (40, "XL"),
    (10, "X"),
    (9, "IX"),
    (5, "V"),
    (4, "IV"),
    (1, "I"),
]


def to_roman(number):
    """Return a number from 1 to 3999 in Roman numerals; raise ValueError for others."""
    if number < 1 or number > 3999:
        raise ValueError("from 1 to 3999")
    text = ""
    for value, sign in SIGNS:
        while number >= value:
            text += sign
            number -= value
    return text


def from_roman(text):
    """Return the number of a Roman numeral; raise ValueError if it is not written the usual way."""
    number = 0
    rest = text
    for value, sign in SIGNS:
        while rest.startswith(sign):
            number += value
            rest = rest[len(sign) :]
    if rest or not text or to_roman(number) != text:
        raise ValueError(text)
    return number
