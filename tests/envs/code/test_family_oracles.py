"""Reference solutions against others that are slow and plain, or come with Python."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections import Counter, deque
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from arl_envs.code.families import FAMILIES

from tests.kit.cases import cases

from .inputs import inputs_of


def slices(items: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Every stretch of neighbours, with the index where it starts."""
    for start in range(len(items)):
        for end in range(start + 1, len(items) + 1):
            yield start, items[start:end]


def encode_runs(text: str, *, least: int, form: str) -> str:
    def code(run: re.Match[str]) -> str:
        parts = [str(len(run[0])), run[1]]
        return "".join(parts if form.startswith("its length") else parts[::-1])

    return re.sub(rf"(.)\1{{{least - 1},}}", code, text)


def group_digits(text: str, *, group: int, side: str, separator: str) -> str:
    if side == "left":
        return re.sub(rf"(\d{{{group}}})(?=\d)", rf"\1{separator}", text)
    return re.sub(rf"(?<=\d)(?=(\d{{{group}}})+$)", separator, text)


def wrap_words(text: str, *, width: int) -> list[int]:
    return [len(line) for line in textwrap.wrap(text, width, break_long_words=False)]


def read_zigzag(text: str, *, rails: int, start: str) -> str:
    turn = [*range(rails), *range(rails - 2, 0, -1)]
    rows = [turn[i % len(turn)] for i in range(len(text))]
    sign = 1 if start == "top" else -1
    return "".join(text[i] for i in sorted(range(len(text)), key=lambda i: sign * rows[i]))


def find_affix(words: list[str], *, side: str, least: int, tie: str) -> str:
    has = str.startswith if side == "start" else str.endswith
    parts = {"".join(p) for n in range(7) for p in itertools.product("ab", repeat=n)}
    shared = [part for part in parts if sum(has(word, part) for word in words) >= least]
    longest = [part for part in shared if len(part) == max(map(len, shared))]
    return (min if tie == "first" else max)(longest, default="")


def count_runs(numbers: list[int], *, least: int) -> int:
    return sum(len([*run]) >= least for _, run in itertools.groupby(numbers))


def count_slices(numbers: list[int], *, divisor: int, remainder: int) -> int:
    return sum((sum(part) - remainder) % divisor == 0 for _, part in slices(numbers))


def find_stretch(numbers: list[int], *, limit: int, tie: str) -> list[int]:
    found = [(len(part), start) for start, part in slices(numbers) if len(set(part)) <= limit]
    sign = -1 if tie == "first" else 1
    length, start = max(found, key=lambda item: (item[0], sign * item[1]), default=(0, 0))
    return [start, length] if length else []


def list_frequent(numbers: list[int], *, count: int, least: int, tie: str) -> list[int]:
    counts = Counter(sorted(numbers, reverse=tie == "larger"))
    return [value for value, often in counts.most_common(count) if often >= least]


def empty_circle(numbers: list[int], *, step: int, left: int) -> list[int]:
    circle, taken = deque(numbers), []
    while len(circle) > left:
        circle.rotate(1 - step)
        taken.append(circle.popleft())
    return taken


def read_spiral(matrix: list[list[int]], *, corner: str, turn: str) -> list[int]:
    cells = {(i, j): value for i, row in enumerate(matrix) for j, value in enumerate(row)}
    place = complex("bottom" in corner and len(matrix) - 1)  # row + column * 1j
    place += 1j * ("right" in corner and max(column for _, column in cells) if cells else 0)
    clockwise = ["top left", "top right", "bottom right", "bottom left"]
    step = 1j * (-1j) ** clockwise.index(corner)
    if turn == "counterclockwise":
        step *= -1j
    result: list[int] = []
    while cells:
        result.append(cells.pop((int(place.real), int(place.imag))))
        ahead = place + step
        if (int(ahead.real), int(ahead.imag)) not in cells:
            step *= -1j if turn == "clockwise" else 1j
        place += step
    return result


def merge_ranges(ranges: list[list[int]], *, gap: int, least: int) -> list[list[int]]:
    for one, other in itertools.permutations(ranges, 2):
        if one[0] <= other[0] <= one[1] + gap:
            rest = [*ranges]
            rest.remove(one)
            rest.remove(other)
            both = [one[0], max(one[1], other[1])]
            return merge_ranges([both, *rest], gap=gap, least=least)
    return sorted([start, end] for start, end in ranges if end - start >= least)


def strike_digits(number: int, *, count: int, goal: str) -> int:
    digits = str(number)
    kept = itertools.combinations(digits, max(0, len(digits) - count))
    return (max if goal == "large" else min)(int("0" + "".join(part)) for part in kept)


def sum_fractions(fractions: list[list[int]], *, every: int, treatment: str) -> list[int]:
    total = Fraction(0)
    for i, (top, bottom) in enumerate(fractions, start=1):
        part = Fraction(top, bottom)
        changed = {"subtract it": -part, "leave it out": 0, "add its square": part**2}
        total += part if i % every else changed[treatment]
    return [total.numerator, total.denominator]


def expand_fraction(top: int, bottom: int, *, base: int) -> list[int]:
    for start, length in itertools.product(range(9), range(1, bottom)):
        if top * base**start * (base**length - 1) % bottom == 0:
            digits = [top * base ** (start + i + 1) // bottom % base for i in range(length)]
            return [] if digits == [0] else digits
    return []


ORACLES: tuple[Callable[..., Any], ...] = (
    *(encode_runs, group_digits, wrap_words, read_zigzag, find_affix),
    *(count_runs, count_slices, find_stretch, list_frequent, empty_circle),
    *(read_spiral, merge_ranges, strike_digits, sum_fractions, expand_fraction),
)


@cases("oracle", ORACLES, ids=lambda oracle: oracle.__name__)
def test_reference_agrees(oracle: Callable[..., Any]):
    family = FAMILIES[oracle.__name__]
    for args, parameters in inputs_of(family):
        assert oracle(*args, **parameters) == family.answer(args, parameters)


def test_numbers_in_a_base_are_read_back():
    for (number,), parameters in inputs_of(FAMILIES["convert_base"]):
        text = FAMILIES["convert_base"].answer((number,), parameters)
        assert int(text, int(parameters["base"])) == number
        assert text.lower() == text
