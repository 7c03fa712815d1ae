"""Whole numbers in English words, from zero to ninety-nine."""

from __future__ import annotations

_SMALL = [
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
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]

NUMBER_WORDS = {word: number for number, word in enumerate(_SMALL)}
NUMBER_WORDS |= {word: 20 + 10 * number for number, word in enumerate(_TENS)}
NUMBER_WORDS |= {
    f"{ten} {one}": 20 + 10 * above + 1 + below
    for above, ten in enumerate(_TENS)
    for below, one in enumerate(_SMALL[1:10])
}
