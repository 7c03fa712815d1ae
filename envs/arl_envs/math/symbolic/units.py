r"""Units at the end of an answer, in one spelling. Nothing is ever converted.

5 \text{ cm}   5\text{ centimeters}    cm
\$18           18\text{ dollars}       dollar
15\text{ cm}^2 15\text{ square cm}     cm^2
30^\circ       30\text{ degrees}       degree
10\%           10\text{ percent}       percent

Letters outside of \text{} may be variables: `spoken` decides on these.
"""

from __future__ import annotations

import re

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
    """Return the measure that `word` is a spelling of; "" if it is none."""
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
