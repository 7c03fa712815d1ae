"""Whole numbers and their digits."""

from __future__ import annotations

import string

from .family import Draw, Family, family


@family(
    "numbers",
    base=(2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16),
    inputs=lambda draw: (draw.integer(-(draw.size**3), 2 * draw.size**4),),
    edges=lambda draw: [
        (0,),
        (-1,),
        (draw.number("base"),),
        (draw.number("base") ** 3 - 1,),
        (-(draw.number("base") ** 4),),
    ],
)
def convert_base(number: int, *, base: int) -> str:
    """Write `number` in base {base}: digits above 9 are a, b, c and so on, there are no leading
    zeros, and a minus sign stands in front of negative numbers.
    """
    digits = ""
    rest = abs(number)
    while rest or not digits:
        digits = "0123456789abcdef"[rest % base] + digits
        rest //= base
    return "-" + digits if number < 0 else digits


def _interval(draw: Draw, low: int, high: int, length: int) -> tuple[int, int]:
    start = draw.integer(low, high)
    return start, start + draw.integer(-1, length)


def _prime_bounds(draw: Draw) -> list[tuple[int, int]]:
    """Return intervals, one from a counted prime to another, and one just inside of it."""
    primes = [n for n in range(2, 99) if all(n % factor for factor in range(2, n))]
    divisor, remainder = draw.number("divisor"), draw.number("remainder")
    first, *_, last = (prime for prime in primes if prime % divisor == remainder)
    return [(-9, 1), (0, 14), (31, 29), (0, 160), (first, last), (first + 1, last - 1)]


@family(
    "numbers",
    divisor=(3, 5, 7, 11),
    remainder=(1, 2),
    inputs=lambda draw: _interval(draw, -5, 6 * draw.size, 9 * draw.size),
    edges=_prime_bounds,
)
def count_primes(low: int, high: int, *, divisor: int, remainder: int) -> int:
    """Count the prime numbers from `low` to `high`, both included, that leave remainder {remainder}
    when divided by {divisor}. If `low` is above `high`, there are none.
    """
    count = 0
    for number in range(max(low, 2), high + 1):
        if number % divisor == remainder:
            factor = 2
            while factor * factor <= number and number % factor != 0:
                factor += 1
            if factor * factor > number:
                count += 1
    return count


@family(
    "numbers",
    power=(2, 3),
    base=range(5, 11),
    inputs=lambda draw: (draw.integer(0, 10 + draw.size**3),),
    edges=lambda draw: [(0,), (1,), (draw.number("base"),), (draw.number("base") ** 3 - 1,)],
)
def count_digit_steps(number: int, *, power: int, base: int) -> int:
    """Replace `number` (not negative) by the sum of its digits in base {base}, each raised to the
    power {power}, and go on so until a number comes up again. Return how many different numbers
    came up, the given one included.
    """
    seen: list[int] = []
    while number not in seen:
        seen.append(number)
        rest, number = number, 0
        while rest:
            number += (rest % base) ** power
            rest //= base
    return len(seen)


def _climber(draw: Draw) -> int:
    """Return a start that is odd in every second step, so that its highest number comes last, or
    last but one."""
    factor, extra, modulus = draw.number("factor"), draw.number("extra"), 2 ** draw.number("steps")
    return -extra * pow(factor - 2, -1, modulus) % modulus


@family(
    "numbers",
    factor=(3, 5, 7),
    extra=(1, 3, 5),
    steps=(4, 7, 10),
    inputs=lambda draw: (draw.integer(-2 * draw.size, 20 * draw.size),),
    edges=lambda draw: [(0,), (1,), (-1,), (1024,), (_climber(draw),), (2 * _climber(draw),)],
)
def find_highest(number: int, *, factor: int, extra: int, steps: int) -> int:
    """Do this {steps} times: if `number` is even, halve it; if it is odd, multiply it by {factor}
    and add {extra}. Return the largest number that there was, the first and the last included.
    """
    highest = number
    for _ in range(steps):
        if number % 2 == 0:
            number //= 2
        else:
            number = number * factor + extra
        highest = max(highest, number)
    return highest


@family(
    "numbers",
    one=(4, 6, 10),
    other=(9, 14, 15),
    which=("exactly one", "at least one", "none"),
    inputs=lambda draw: _interval(draw, -9 * draw.size, 9 * draw.size, 8 * draw.size),
    edges=lambda draw: [
        (0, 0),
        (5, 4),
        (draw.number("one"), 5 * draw.number("one")),
        (-draw.number("other"), draw.number("other")),
        (draw.number("one") + 1, 11 * draw.number("one") - 1),
    ],
)
def count_multiples(low: int, high: int, *, one: int, other: int, which: str) -> int:
    """Count the whole numbers from `low` to `high`, both included, that are multiples of {which}
    of {one} and {other}. 0 is a multiple of both. If `low` is above `high`, there are none.
    """
    count = 0
    for number in range(low, high + 1):
        hits = (number % one == 0) + (number % other == 0)
        if which == "exactly one":
            count += hits == 1
        elif which == "at least one":
            count += hits >= 1
        else:
            count += hits == 0
    return count


@family(
    "numbers",
    count=range(1, 6),
    goal=("large", "small"),
    inputs=lambda draw: (int("0" + draw.word(string.digits, length=1 + draw.size // 2)),),
    edges=lambda draw: [
        (0,),
        (10 ** draw.number("count") - 1,),
        (10 ** draw.number("count"),),
        (1312435 if draw.parameters["goal"] == "small" else 9798675,),
        (12345678 if draw.parameters["goal"] == "small" else 98765432,),
        (10203040,),
    ],
    largest=30,
)
def strike_digits(number: int, *, count: int, goal: str) -> int:
    """Strike {count} digits out of `number` (not negative), so that the others, in their order,
    form a number as {goal} as possible; it may begin with zeros. Return it, or 0 if `number` has at
    most {count} digits.
    """
    digits = str(number)
    if len(digits) <= count:
        return 0
    kept = ""
    for i, digit in enumerate(digits):
        while kept and len(kept) + len(digits) - i > len(digits) - count:
            if kept[-1] == digit or (kept[-1] < digit) == (goal == "small"):
                break
            kept = kept[:-1]
        kept += digit
    return int(kept[: len(digits) - count])


def _fractions(draw: Draw) -> list[list[int]]:
    return [[draw.integer(-5, 9), draw.integer(1, 9)] for _ in range(draw.size // 2)]


@family(
    "numbers",
    every=(2, 3, 4, 5),
    treatment=("subtract it", "leave it out", "add its square"),
    inputs=lambda draw: (_fractions(draw),),
    edges=lambda draw: [
        ([],),
        ([[0, 7]],),
        ([[1, 2]] * draw.number("every"),),
        ([[2, 4], [3, 6], [-5, 5]],),
        ([[-1, 6], [1, 10], [1, 15], [3, 4], [5, 9], [-7, 8]],),
    ],
)
def sum_fractions(fractions: list[list[int]], *, every: int, treatment: str) -> list[int]:
    """`fractions` are [top, bottom] with bottom > 0. Number them from 1 and add them up, but if a
    fraction's number is a multiple of {every}, {treatment} instead. Return the result as [top,
    bottom] in lowest terms with bottom > 0; zero is [0, 1].
    """
    import math

    top, bottom = 0, 1
    for i, (up, down) in enumerate(fractions):
        if (i + 1) % every == 0:
            if treatment == "leave it out":
                continue
            if treatment == "subtract it":
                up = -up
            else:
                up, down = up * up, down * down
        top, bottom = top * down + up * bottom, bottom * down
        common = math.gcd(top, bottom)
        top, bottom = top // common, bottom // common
    return [top, bottom]


@family(
    "numbers",
    odd=(1, 3),
    even=(2, 7, 9),
    divisor=(10, 11, 13),
    inputs=lambda draw: (draw.word(string.digits),),
    edges=lambda draw: [("",), ("0",), ("5",), ("10",), ("9999999999",), ("0123456789",)],
)
def find_checksum(text: str, *, odd: int, even: int, divisor: int) -> int:
    """Count the places of the digits in `text` from the right, from 1 on. Add up {odd} times each
    digit at an odd place and {even} times each at an even place. Return the least number, 0 or
    more, that added to this sum gives a multiple of {divisor}.
    """
    total = 0
    for i, digit in enumerate(reversed(text)):
        total += int(digit) * (odd if i % 2 == 0 else even)
    return -total % divisor


def _multiples(draw: Draw) -> list[int]:
    """Return numbers of which about half are multiplied by the divisor in the statement."""
    return [n * draw.rng.choice((1, draw.number("divisor"))) for n in draw.integers(1, 12)]


@family(
    "numbers",
    relation=("equal to", "larger than", "a multiple of"),
    divisor=(2, 3, 4, 5),
    inputs=lambda draw: (_multiples(draw),),
    edges=lambda draw: [
        ([],),
        ([draw.number("divisor")],),
        ([draw.number("divisor")] * 5,),
        ([2 * draw.number("divisor")] * 4,),
        (list(range(1, 25)),),
    ],
)
def count_gcd_pairs(numbers: list[int], *, relation: str, divisor: int) -> int:
    """Count the pairs of indexes i < j for which the greatest common divisor of numbers[i] and
    numbers[j] is {relation} {divisor}. All numbers are 1 or more.
    """
    import math

    count = 0
    for j in range(len(numbers)):
        for i in range(j):
            common = math.gcd(numbers[i], numbers[j])
            if relation == "equal to":
                count += common == divisor
            elif relation == "larger than":
                count += common > divisor
            else:
                count += common % divisor == 0
    return count


@family(
    "numbers",
    divisor=range(3, 10),
    digit=range(2, 10),
    inputs=lambda draw: (draw.integer(0, 10 + 36 * draw.size),),
    edges=lambda draw: [
        (0,),
        (99,),
        (draw.number("divisor") - 1,),
        (draw.number("digit") - 1,),
        (100 * draw.number("digit") - 1,),
        (899,),
    ],
)
def find_next_number(number: int, *, divisor: int, digit: int) -> int:
    """Return the smallest whole number above `number` (not negative) that does not contain the
    digit {digit} and whose digits add up to a multiple of {divisor}.
    """
    number += 1
    while str(digit) in str(number) or sum(map(int, str(number))) % divisor != 0:
        number += 1
    return number


@family(
    "numbers",
    divisor=(3, 4, 5),
    remainder=(0, 1, 2),
    inputs=lambda draw: (draw.integer(1, 1 + 6 * draw.size) * draw.integer(1, 4),),
    edges=lambda draw: [(1,), (2,), (7,), (draw.number("divisor"),), (36,), (240,)],
)
def sum_divisors(number: int, *, divisor: int, remainder: int) -> int:
    """Add up the divisors of `number` (which is at least 1), 1 and `number` itself included, but
    without those that leave remainder {remainder} when divided by {divisor}.
    """
    total = 0
    for part in range(1, number + 1):
        if number % part == 0 and part % divisor != remainder:
            total += part
    return total


@family(
    "numbers",
    digit=(0, 1, 2, 3),
    base=range(4, 11),
    inputs=lambda draw: _interval(draw, 0, 20 * draw.size, 3 * draw.size),
    edges=lambda draw: [
        (0, 0),
        (5, 4),
        (1, draw.number("base") ** 2),
        (draw.number("digit"), draw.number("digit")),
        (0, draw.number("base") * (draw.number("digit") + 1)),
    ],
)
def count_digit(low: int, high: int, *, digit: int, base: int) -> int:
    """Write down all whole numbers from `low` (not negative) to `high`, both included, in base
    {base} without leading zeros; zero is 0. Return how often the digit {digit} is written. If `low`
    is above `high`, return 0.
    """
    count = 0
    for number in range(low, high + 1):
        count += number % base == digit
        while number >= base:
            number //= base
            count += number % base == digit
    return count


@family(
    "numbers",
    base=range(2, 11),
    inputs=lambda draw: (
        draw.integer(0, 9 * draw.size),
        draw.integer(1, 7 + 2 * draw.size) * draw.rng.choice((1, 7)),
    ),
    edges=lambda draw: [
        (0, 7),
        (3, 1),
        (1, draw.number("base")),
        (draw.number("base") + 1, 3 * draw.number("base")),
        (22, 7),
        (1, 49),
    ],
)
def expand_fraction(top: int, bottom: int, *, base: int) -> list[int]:
    """Write `top` / `bottom` (top >= 0, bottom >= 1) with a point in base {base}. Return the
    shortest block of digits that repeats without end, as it first comes up after the point; [] if
    the digits come to an end.
    """
    seen: list[int] = []
    digits: list[int] = []
    rest = top % bottom
    while rest != 0 and rest not in seen:
        seen.append(rest)
        rest *= base
        digits.append(rest // bottom)
        rest %= bottom
    return digits[seen.index(rest) :] if rest != 0 else []


FAMILIES: tuple[Family, ...] = (
    convert_base,
    count_primes,
    count_digit_steps,
    find_highest,
    count_multiples,
    strike_digits,
    sum_fractions,
    find_checksum,
    count_gcd_pairs,
    find_next_number,
    sum_divisors,
    count_digit,
    expand_fraction,
)
