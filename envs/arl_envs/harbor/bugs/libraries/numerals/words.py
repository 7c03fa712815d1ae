"""Numbers in English words, and in groups of digits."""

SMALL = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def in_words(number):
    """Return a number below a million in words, such as "one hundred and two"."""
    if number < 0:
        return "minus " + in_words(-number)
    if number < 20:
        return SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        name = TENS[tens - 2]
        return name if ones == 0 else f"{name}-{SMALL[ones]}"
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        name = f"{SMALL[hundreds]} hundred"
        return name if rest == 0 else f"{name} and {in_words(rest)}"
    thousands, rest = divmod(number, 1000)
    name = f"{in_words(thousands)} thousand"
    if rest == 0:
        return name
    return f"{name} and {in_words(rest)}" if rest < 100 else f"{name} {in_words(rest)}"


def grouped(number, size=3, mark=","):
    """Return a number's digits in groups from the right."""
    digits = str(abs(number))
    groups = []
    while len(digits) > size:
        groups.insert(0, digits[-size:])
        digits = digits[:-size]
    groups.insert(0, digits)
    text = mark.join(groups)
    return "-" + text if number < 0 else text


def ordinal(number):
    """Return 1st, 2nd, 3rd, 4th, 11th, 21st and so on."""
    last = number % 10
    if number % 100 // 10 == 1 or last > 3 or last == 0:
        return f"{number}th"
    return f"{number}{['st', 'nd', 'rd'][last - 1]}"
