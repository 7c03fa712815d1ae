r"""Units at the end of an answer, with or without \text{}, in one spelling; none is converted.

5 \text{ cm}   5\text{ centimeters}    cm
\$18           18\text{ dollars}       dollar
15\text{ cm}^2 15\text{ square cm}     cm^2
30^\circ       30\text{ degrees}       degree
10\%           10\text{ percent}       percent

Letters outside of \text{} may be units or variables that look alike: 5 cm, 7 apples, 20 m/s; 3xy,
2h, 5km. Unclear letters are variables: an answer may omit the right answer's unit, but not its
variables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_ALIASES = {
    "m": "m meter metre", "cm": "cm centimeter centimetre", "mm": "mm millimeter millimetre",
    "km": "km kilometer kilometre", "inch": "in inch", "foot": "ft foot feet",
    "yard": "yd yard", "mile": "mi mile", "second": "s sec second", "minute": "min minute",
    "hour": "h hr hour", "day": "day", "week": "week wk", "month": "month",
    "year": "year yr", "g": "g gram gramme", "kg": "kg kilogram", "mg": "mg milligram",
    "pound": "lb pound", "ounce": "oz ounce", "ton": "ton tonne", "liter": "l liter litre",
    "ml": "ml milliliter millilitre", "gallon": "gal gallon", "degree": "degree deg",
    "radian": "rad radian", "percent": "percent percentage pct", "dollar": "dollar usd buck",
    "cent": "cent", "euro": "euro eur", "yen": "yen jpy", "rupee": "rupee rs inr",
    "peso": "peso", "yuan": "yuan rmb cny", "ruble": "ruble rouble", "franc": "franc chf",
    "mile/hour": "mph", "km/hour": "kmh kph", "unit": "unit",
    "hertz": "hz hertz", "newton": "n newton", "joule": "j joule", "watt": "w watt",
    "volt": "v volt", "pm": "pm", "am": "am",
}  # fmt: skip
CURRENCIES = frozenset(("dollar", "cent", "euro", "pound", "yen", "rupee", "won", "peso", "yuan",
                        "ruble", "franc"))  # fmt: skip
_CANONICAL = {alias: unit for unit, aliases in _ALIASES.items() for alias in aliases.split()}
ONE_LETTER = frozenset("mgshlLNJWV")
MEASURES = frozenset(_ALIASES)
"""The units of measure; any other word after a number names counted things."""

_IRREGULAR = {"people": "person", "children": "child", "men": "man", "women": "woman"}
_SHAPES = (("square", "^2"), ("sq.", "^2"), ("sq", "^2"), ("cubic", "^3"), ("cu", "^3"))
_AROUND = re.compile(
    r"^(?:more|total|additional)\s+|\s+(?:in total|in all|altogether|total|left|remaining|old)$"
)

_TEXT_UNIT = re.compile(
    r"(?P<value>.*[^\\\s])\s*\\text\{\s*(?P<unit>[A-Za-z][A-Za-z./ -]*)\}"
    r"\s*(?P<power>\^\s*\{?\s*[23]\s*\}?)?"
)
_MONEY = re.compile(
    r"(?P<sign>-?)\s*(?:(?:US|CA|AU|NZ|HK)?\s*\\\$|\\pounds|\\text\{\s*(?P<name>euro|pound|yen|rupee|won)\}"
    r"|(?:\\text\{\s*)?(?P<code>USD|EUR|GBP|INR|JPY|CNY|RMB|Rs\.?)(?:\s*\})?(?=\s*[0-9]))"
    r"\s*(?P<value>[-0-9.(\\].*)"
)
_TRAILING = (
    (re.compile(r"(?P<value>.*\S)\s*%"), "percent"),
    (re.compile(r"(?P<value>.*\S)\s*\\degree\s*(?:C|F|\\text\{[CF]\})?"), "degree"),
    (re.compile(r"(?P<value>.*[0-9])\s*\\\$"), "dollar"),
)
_BEGINS = re.compile(
    r"[-+*/^_=<>,(\[{]\s*$|\\(?:cdot|times|d?frac|sqrt|text|binom|overline|log|ln|sin|cos|tan)?\s*$"
)


def split_unit(text: str) -> tuple[str, str]:
    """Return the value and the unit of `text`; the unit is "" if there is none."""
    if match := _MONEY.fullmatch(text):
        sign = "pound" if "\\pounds" in match[0] else "dollar"
        return match["sign"] + match["value"], canonical(match["name"] or match["code"] or sign)
    for pattern, unit in _TRAILING:
        if (match := pattern.fullmatch(text)) and not _BEGINS.search(match["value"]):
            return match["value"], unit
    match = _TEXT_UNIT.fullmatch(text)
    if match is None or _BEGINS.search(match["value"]):
        return text, ""
    unit = match["unit"].strip()
    if len(unit) == 1 and unit not in ONE_LETTER:  # a variable in another font
        return text, ""
    power = re.sub(r"[^23]", "", match["power"] or "")
    return match["value"].strip(), canonical(unit) + (f"^{power}" if power else "")


def canonical(unit: str) -> str:
    """Return `unit` in one spelling."""
    text = unit.strip().strip(".")
    if re.fullmatch(r"[pa]\.\s?m", text.lower()):
        return text[0].lower() + "m"
    text, power = _AROUND.sub("", text), ""
    for word, exponent in _SHAPES:
        if text.lower().startswith(f"{word} "):
            text, power = text[len(word) :].strip(), exponent
    text = re.sub(r"\s+squared$", "^2", re.sub(r"\s+cubed$", "^3", text))
    words = re.split(r"(\s*/\s*|\s+per\s+|\s+)", text)
    return "".join(_one(word) for word in words) + power


def _one(word: str) -> str:
    bare = word.strip()
    if bare in ("", "/", "per"):
        return "/" if bare else " " * bool(word)
    return known(bare.rstrip(".")) or singular(bare.rstrip(".").lower())


def known(word: str) -> str:
    """Return the measure that `word` is a spelling of; "" if it is not a measure."""
    lower = word.lower()
    if len(lower) == 1:
        return _CANONICAL.get(lower, "") if word in ONE_LETTER else ""
    return _CANONICAL.get(lower) or _CANONICAL.get(singular(lower) if len(lower) > 2 else "", "")


def singular(word: str) -> str:
    """Return the singular of `word`, which is in lower case."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if match := re.fullmatch(r"(.{2,})ies", word):
        return f"{match[1]}y"
    if match := re.fullmatch(r"(.+(?:ss|x|sh|ch))es", word):
        return match[1]
    return word[:-1] if re.fullmatch(r".+[^s]s", word) else word


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
class Mentioned:
    """The words, units and variables in a question."""

    words: frozenset[str]
    """The words of its prose, in lower case."""
    units: frozenset[str]
    variables: frozenset[str]


@lru_cache(maxsize=256)
def mentioned_in(question: str) -> Mentioned:
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
    return Mentioned(names, frozenset(units | parts), frozenset(variables))


def _inside(match: re.Match[str]) -> str:
    return re.sub(r"\\[A-Za-z]+", " ", next(filter(None, match.groups())))


def _is_price(match: re.Match[str]) -> bool:
    """Return whether the match is two prices and the words between them, not math."""
    return bool(_PRICE.match(_inside(match)))


def marked(text: str, question: str = "", gold: str = "") -> str:
    r"""Return `text`, which is in the one spelling, with \text{} around its bare units.

    `question` and `gold`, the right answer, serve to distinguish units from variables.
    """
    if not re.search(r"[A-Za-z]", text):
        return text
    text = re.sub(r"\\text\{\s*([ei])\s*\}", r" \1 ", text)
    mentioned, sure = mentioned_in(question), _units_in(gold)
    counts = bool(gold) and not re.search(r"[A-Za-z]", _TEXT_OR_COMMAND.sub("", gold))
    variables = {
        letter for letter in mentioned.variables if known(letter) not in mentioned.units | sure
    }
    text = re.sub(
        r"(?<=[^\s,;(\[{&])\s*\\text\{\s*([mghlsLNJWV])\s*\}",
        lambda match: f" {match[1]} " if match[1] in variables else match[0],
        text,
    )
    return _BARE.sub(lambda match: _mark(match, mentioned, sure, counts), text).strip()


def _units_in(gold: str) -> frozenset[str]:
    r"""Return the units in the \text{} of a right answer: these are certainly units."""
    return frozenset(
        known(word) for text in _TEXT.findall(gold) for word in re.findall(r"[A-Za-z]+", text)
    ) - {""}


def _mark(match: re.Match[str], mentioned: Mentioned, sure: frozenset[str], counts: bool) -> str:
    value = re.split(r"[,;=<>]|\b(?:and|or)\b", match.string[: match.start()])[-1]
    words = re.findall(_WORD, match["unit"])
    spaced = bool(match["gap"])
    plain = counts and bool(_PLAIN_NUMBER.fullmatch(value))
    if all(_is_unit(word, value, spaced, mentioned, sure, plain) for word in words):
        return rf"\text{{ {match['unit']}}}"
    return match[0]


def _is_unit(
    word: str, value: str, spaced: bool, mentioned: Mentioned, sure: frozenset[str], counts: bool
) -> bool:
    """Return whether `word` after `value` is a unit, or part of one, and no product of variables.

    `counts`: `value` is a number and the right answer has no variables, so `word` has none either.
    """
    if re.fullmatch(r"[ap]\.\s?m\.?", word):
        return True
    unit, lower = known(word), word.lower()
    of_variables = re.search(r"[A-Za-z]", re.sub(r"\\text\{[^{}]*\}|\\[A-Za-z]+", "", value))
    if not unit:
        known_noun = counts or lower in mentioned.words
        there = lower in _SMALL or (bool(_NOUN.fullmatch(word)) and known_noun)
        return there and spaced and not of_variables
    if len(word) > 3 or unit in sure:
        return True
    if of_variables or set(word) <= mentioned.variables | {"e", "i"}:
        return False
    if len(word) == 1:
        return word in ONE_LETTER and bool(_NUMBER.fullmatch(value)) and unit in mentioned.units
    return spaced or unit in mentioned.units
