r"""Units: read off the end of an answer, in one spelling. Nothing is ever converted.

5 \text{ cm}   5 centimeters   5cm     cm
\$18           18 dollars              dollar
15 cm^2        15 square centimeters   cm^2
30^\circ       30 degrees              degree
10\%           10 percent              percent
"""

from __future__ import annotations

import re

_ALIASES = {
    "m": "m meter metre", "cm": "cm centimeter centimetre", "mm": "mm millimeter millimetre",
    "km": "km kilometer kilometre", "inch": "in inch inche", "foot": "ft foot feet",
    "yard": "yd yard", "mile": "mi mile", "second": "s sec second", "minute": "min minute",
    "hour": "h hr hour", "day": "day", "week": "week wk", "month": "month",
    "year": "year yr", "g": "g gram gramme", "kg": "kg kilogram", "mg": "mg milligram",
    "pound": "lb pound", "ounce": "oz ounce", "ton": "ton tonne", "liter": "l liter litre",
    "ml": "ml milliliter millilitre", "gallon": "gal gallon", "degree": "degree deg",
    "radian": "rad radian", "percent": "percent percentage pct", "dollar": "dollar usd buck",
    "cent": "cent", "euro": "euro eur", "mph": "mph", "kmh": "kmh kph", "unit": "unit",
    "hertz": "hz hertz", "newton": "n newton", "joule": "j joule", "watt": "w watt",
    "volt": "v volt", "pm": "pm", "am": "am",
}  # fmt: skip
_CANONICAL = {alias: unit for unit, aliases in _ALIASES.items() for alias in aliases.split()}
_ONE_LETTER = frozenset("mgshlLNJWV")

_VALUE = r"[-+]?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_POWER = r"(?P<power>\^\s*\{?\s*[23]\s*\}?)?"
_TEXT_UNIT = re.compile(
    r"(?P<value>.*[^\\\s])\s*\\text\{\s*(?P<unit>[A-Za-z][A-Za-z./ -]*)\}\s*" + _POWER
)
_WORD_UNIT = re.compile(
    rf"(?P<value>{_VALUE}|.*[0-9)}}\]])\s*(?P<unit>[A-Za-z]{{2,}}[A-Za-z./ ]*)" + _POWER
)
_LETTER_UNIT = re.compile(rf"(?P<value>{_VALUE})\s*(?P<unit>[mgshlLNJWV])" + _POWER)
_MONEY = re.compile(
    r"(?P<sign>-?)\s*(?:\\\$|\\text\{(?P<name>euro|pound)\})\s*(?P<value>[-0-9.(\\].*)"
)
_TRAILING = (
    (re.compile(r"(?P<value>.*\S)\s*%"), "percent"),
    (re.compile(r"(?P<value>.*\S)\s*\\degree\s*(?:C|F|\\text\{[CF]\})?"), "degree"),
    (re.compile(r"(?P<value>.*[0-9])\s*\\\$"), "dollar"),
)


def split_unit(text: str) -> tuple[str, str]:
    """The value and the unit of `text`; the unit is "" where there is none."""
    if match := _MONEY.fullmatch(text):
        return match["sign"] + match["value"], canonical(match["name"] or "dollar")
    for pattern, unit in _TRAILING:
        if (match := pattern.fullmatch(text)) and _whole(match["value"]):
            return match["value"], unit
    for pattern in (_TEXT_UNIT, _WORD_UNIT, _LETTER_UNIT):
        match = pattern.fullmatch(text)
        if match and _whole(match["value"]) and not re.search(r"\\[A-Za-z]*$", match["value"]):
            power = re.sub(r"[^23]", "", match["power"] or "")
            unit = match["unit"] if match["unit"] in _ONE_LETTER else match["unit"].lower()
            return match["value"].strip(), canonical(unit) + (f"^{power}" if power else "")
    return text, ""


def _whole(value: str) -> bool:
    """Whether `value` is not the beginning of something: no operator at its end."""
    return not re.search(r"[-+*/^_=<>,(\[{]\s*$|\\(?:cdot|times)\s*$", value)


def canonical(unit: str) -> str:
    """One spelling of `unit`."""
    text = unit.strip().strip(".")
    if re.fullmatch(r"[pa]\.\s?m", text):
        return text[0] + "m"
    power = ""
    for word, exponent in (
        ("square", "^2"),
        ("sq.", "^2"),
        ("sq", "^2"),
        ("cubic", "^3"),
        ("cu", "^3"),
    ):
        if text.startswith(f"{word} "):
            text, power = text[len(word) :].strip(), exponent
    text = re.sub(r"\s+squared$", "^2", re.sub(r"\s+cubed$", "^3", text))
    words = re.split(r"(\s*/\s*|\s+per\s+|\s+)", text)
    return "".join(_one(word) for word in words) + power


def _one(word: str) -> str:
    bare = word.strip()
    if bare in ("", "/", "per"):
        return "/" if bare else " " * bool(word)
    bare = bare.rstrip(".")
    if bare in _CANONICAL:
        return _CANONICAL[bare]
    lower = bare.lower()
    if lower in _CANONICAL and len(lower) > 1:
        return _CANONICAL[lower]
    singular = lower[:-1] if lower.endswith("s") and len(lower) > 2 else lower
    return _CANONICAL.get(singular, singular)


_ASKED = re.compile(
    r"(?:how many|how much|number of|what percent(?:age)? of|\bin|\binto|measured in)\s+"
    r"((?:[a-z]+[\s,.?]+){0,3}[a-z]+)",
    re.IGNORECASE,
)


def asks_for(question: str, unit: str) -> bool:
    """Whether `question` wants its answer in `unit`, so that saying so adds nothing."""
    lower = question.lower()
    if unit == "percent":
        return "percent" in lower
    if unit == "degree":
        return bool(re.search(r"degree|\\circ|angle|°", lower)) and "radian" not in lower
    if unit == "dollar":
        return bool(re.search(r"\$ ?[0-9]|dollar|\\\$", lower)) and "cent" not in lower
    wanted = unit.removesuffix("^2").removesuffix("^3")
    others = {_one(word) for word in re.findall(r"[a-z]+", lower)} & _MEASURES
    if wanted in _MEASURES and others - {wanted}:
        return False  # hours or minutes: only one of them is right, and we do not guess which
    if wanted not in _MEASURES and "how many" in lower and "how much" not in lower:
        return wanted in {_one(word) for word in re.findall(r"[a-z]+", lower)}
    return any(
        wanted in {_one(word) for word in re.findall(r"[a-z]+", match[1])}
        for match in _ASKED.finditer(lower)
    )


_MEASURES = frozenset(_ALIASES) - {"unit"}
