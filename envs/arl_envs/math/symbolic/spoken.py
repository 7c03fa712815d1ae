r"""Units without \text{}, next to variables that look alike: 5 cm, 7 apples, 20 m/s; 3xy, 2h, 5km.

Unclear letters are variables: an answer may omit the right answer's unit, but not its
variables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from .units import ONE_LETTER, known

_TEXT = re.compile(r"\\(?:text|mathrm|textrm|mbox|textbf|rm)\s*\{([^{}]{0,100})\}")
MATH = re.compile(
    r"(?<!\\)\${1,2}([^$]{1,1000}?)(?<!\\)\${1,2}|\\\((.{1,300}?)\\\)|\\\[(.{1,300}?)\\\]"
)
_PRICE = re.compile(r"\s*[0-9][0-9.,]*\s+(?:[a-z]{2,}|a)\b|\s*[0-9][0-9.,]*[.,;?!]*\s*$|.*[a-z]{5}")
_LETTER = re.compile(r"(?<![A-Za-z0-9'’\\.])(?<![0-9] )([B-HJ-Zb-z])(?![A-Za-z'’.])")
_TERMS = re.compile(r"in terms of ([^.?!]{1,80})")
_PROSE = re.compile(r"(?<![A-Za-z0-9\\^*/+=])[A-Za-z]{3,}(?![A-Za-z0-9^*+=])")
_AFTER_NUMBER = re.compile(r"[0-9]\s*(in|[mgshlLNJWV])\b")
_UNCLEAR = frozenset(("in", "am", "s", "second", "sec", "mi", "min", "v", "w", "j", "n"))
"""The units that are also common words of prose."""

_WORD = r"(?:[ap]\.\s?m\b\.?|(?!(?:and|or)\b)[A-Za-z]+)"
_BARE = re.compile(
    rf"(?P<gap>(?:(?<=[0-9)}}\]])|(?<=\\pi)(?=\s))\s*)(?P<unit>{_WORD}(?:(?:\s*/\s*|\s+){_WORD})*)"
    r"(?=\s*(?:\^\s*\{?\s*[23]\s*\}?\s*)?"
    r"(?:$|[,;)\]]|(?:and|or)\b|\\\}|\\cup|\\text\{\s*,?\s*(?:and|or)))"
)
_NOUN = re.compile(r"[A-Za-z][aeiou][a-z]|(?=.*[aeiou])[A-Za-z-]{4,}", re.IGNORECASE)
"""A pattern for nouns, unlike xyz or abc."""
_PLAIN_NUMBER = re.compile(r"\s*-?\s*[0-9][0-9.,]*\s*")
_TEXT_OR_COMMAND = re.compile(r"\\(?:text|mathrm|textrm|mbox|textbf|rm)\s*\{[^{}]*\}|\\[A-Za-z]+")
_NUMBER = re.compile(r"\s*-?\s*(?:[0-9][0-9.]*\s*)?(?:\\frac\s*\{[0-9]+\}\s*\{[0-9]+\})?")
_SMALL = frozenset(("per", "of", "in", "total", "all", "altogether", "left", "more", "square",
                    "cubic", "sq", "squared", "cubed", "remaining", "old"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Said:
    """The words, units and variables in a question."""

    words: frozenset[str]
    """The words of its prose, in lower case."""
    units: frozenset[str]
    variables: frozenset[str]


@lru_cache(maxsize=256)
def said_in(question: str) -> Said:
    """Return the words, units and variables of `question`, between dollar signs and elsewhere."""
    texts = " ".join(match[1] for match in _TEXT.finditer(question))
    bare = _TEXT.sub(" ", question)
    prose = MATH.sub(lambda match: match[0] if _is_price(match) else " ", bare)
    maths = " ".join(_inside(match) for match in MATH.finditer(bare) if not _is_price(match))
    variables = set(re.findall(r"[A-Za-z]", maths))
    variables |= set(_LETTER.findall(prose))
    for match in _TERMS.finditer(bare):
        variables |= set(re.findall(r"\b[A-Za-z]\b", match[1]))
    words = re.findall(r"[A-Za-z]+", prose)
    clear = [word for word in words if len(word) > 1 and word.lower() not in _UNCLEAR]
    clear += _AFTER_NUMBER.findall(bare) + re.findall(r"(?:per|/)\s*(second)\b", bare)
    units = {known(word) for word in clear + re.findall(r"[A-Za-z]+", texts)} - {""}
    parts = {part for unit in units for part in unit.split("/")}  # mph: miles and hours
    names = _PROSE.findall(prose) + texts.split()
    names = frozenset(name.lower() for name in names if len(name) > 2)
    return Said(names, frozenset(units | parts), frozenset(variables))


def _inside(match: re.Match[str]) -> str:
    return re.sub(r"\\[A-Za-z]+", " ", next(filter(None, match.groups())))


def _is_price(match: re.Match[str]) -> bool:
    """Return whether the match is two prices and the words between them, not math."""
    return bool(_PRICE.match(_inside(match)))


def marked(text: str, question: str = "", gold: str = "") -> str:
    r"""Return `text`, which is in the one spelling, with \text{} around its bare units.

    `question` and `gold`, the right answer, tell units from variables.
    """
    if not re.search(r"[A-Za-z]", text):
        return text
    text = re.sub(r"\\text\{\s*([ei])\s*\}", r" \1 ", text)
    said, sure = said_in(question), _units_in(gold)
    counts = bool(gold) and not re.search(r"[A-Za-z]", _TEXT_OR_COMMAND.sub("", gold))
    variables = {letter for letter in said.variables if known(letter) not in said.units | sure}
    text = re.sub(
        r"(?<=[^\s,;(\[{&])\s*\\text\{\s*([mghlsLNJWV])\s*\}",
        lambda match: f" {match[1]} " if match[1] in variables else match[0],
        text,
    )
    return _BARE.sub(lambda match: _mark(match, said, sure, counts), text).strip()


def _units_in(gold: str) -> frozenset[str]:
    r"""Return the units in the \text{} of a right answer: these are certainly units."""
    return frozenset(
        known(word) for text in _TEXT.findall(gold) for word in re.findall(r"[A-Za-z]+", text)
    ) - {""}


def _mark(match: re.Match[str], said: Said, sure: frozenset[str], counts: bool) -> str:
    value = re.split(r"[,;=<>]|\b(?:and|or)\b", match.string[: match.start()])[-1]
    words = re.findall(_WORD, match["unit"])
    spaced = bool(match["gap"])
    plain = counts and bool(_PLAIN_NUMBER.fullmatch(value))
    if all(_is_unit(word, value, spaced, said, sure, plain) for word in words):
        return rf"\text{{ {match['unit']}}}"
    return match[0]


def _is_unit(
    word: str, value: str, spaced: bool, said: Said, sure: frozenset[str], counts: bool
) -> bool:
    """Return whether `word` after `value` is a unit, or part of one, and no product of variables.

    `counts`: `value` is a number and the right answer has no variables, so `word` has none either.
    """
    if re.fullmatch(r"[ap]\.\s?m\.?", word):
        return True
    unit, lower = known(word), word.lower()
    of_variables = re.search(r"[A-Za-z]", re.sub(r"\\text\{[^{}]*\}|\\[A-Za-z]+", "", value))
    if not unit:
        known_noun = counts or lower in said.words
        there = lower in _SMALL or (bool(_NOUN.fullmatch(word)) and known_noun)
        return there and spaced and not of_variables
    if len(word) > 3 or unit in sure:
        return True
    if of_variables or set(word) <= said.variables | {"e", "i"}:
        return False
    if len(word) == 1:
        return word in ONE_LETTER and bool(_NUMBER.fullmatch(value)) and unit in said.units
    return spaced or unit in said.units
