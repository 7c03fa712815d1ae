"""The unit that a question wants its answer in, so that an answer may omit it or add it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import gcd

from .canonical import canonical as canonical_node
from .expression import Node, Unreadable
from .notation import plain
from .parser import parse
from .units import CURRENCIES, MATH, MEASURES, canonical, known, mentioned_in, singular

_LENGTHS = frozenset(("m", "cm", "mm", "km", "inch", "foot", "yard", "mile"))
_TIMES = frozenset(("second", "minute", "hour", "day", "week", "month", "year"))
_MASSES = frozenset(("g", "kg", "mg", "pound", "ounce", "ton"))
_VOLUMES = frozenset(("liter", "ml", "gallon"))


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\S+", text))


_MAGNITUDES = _words(
    "hundred thousand million billion trillion dozen pair score half third quarter fifth tenth"
    " hundredth thousandth"
)
_CHANGES = frozenset(("percent", "degree", "radian", "am", "pm"))
"""The units that change the number itself, or make it no number at all."""
_NO_NOUNS = _words(
    "not or and plus minus times over divided mod modulo squared cubed factorial negative point of"
    " gross couple percent percents base power digits mean no is more less at least most"
)
_FORMULA = re.compile(r"(?<!\\)\$(?! ?[0-9])|\\[(\[]|[0-9)]\s*[-+*/^=×·÷]\s*[0-9(]")
_STOPS = _words(
    "do does did is are was were will would can could should must may might has have had to in on"
    " at for with from by than that which who if when and or he she it they we you i there be been"
    " left remain altogether , . ; : ? ! ("
)
_SKIPPED = _words(
    "of the his her their these those my your our its more total additional extra other whole full"
    " fewer less"
)

_TIME = re.compile(r"\btimes?\b|clock|\b[ap]\.?m\b|\bhours?\b|\bminutes?\b|\bnoon\b|midnight")
_SENTENCE = re.compile(r"(?<=[.?!])\s+|\n+")
_REQUEST = re.compile(r"\?|\b(?:find|determine|compute|calculate|express|convert|round|answer|how"
                      r"|what|give your|give the)\b")  # fmt: skip
_HOW_MANY = r"how many|(?:what (?:is|was)|find|determine|compute|calculate) the (?:\w+ )?number of"
_WANTED = re.compile(
    rf"\b(?P<count>{_HOW_MANY})\b|\b(?:how|what|which)\b"
    r"|(?:^|[.,;:?!]\s*|\band\s+)(?:find|determine|compute|calculate)\b"
)
_TOKEN = re.compile(r"[a-z0-9'’$\\-]+|[,.;:?!(/]")
_NAMED_IN = re.compile(r"\b(?:in|into|to)\s+(?=[a-z])")
_NEAREST = re.compile(r"nearest (?:whole |\w+ of an? )?([a-z]+)")
_PERCENT = re.compile(
    r"\b(?:what|which|the|an?|in|nearest)\s+(?:(?!\w*(?:ty|teen|ten|five)\b)[a-z]+\s+)?percent"
)
_MONEY_SIGNS = {
    "dollar": r"\\\$|\bdollars?\b"
    r"|\$ ?[0-9][0-9,]*(?:\.[0-9]+)?(?:[\s.,;:?!)/](?!\s*[-+*=<>\\^])|$)",
    "cent": r"\bcents?\b|¢",
    "euro": r"€|\beuros?\b",
    "pound": r"£|\\pounds",
}
_MONEY = re.compile(
    r"how much (?:more |less |total |in total )?(?:money|profit|change|cash|does|did|do|will|would"
    r"|is|are|was|were|should|can|could|has|have|had|it|the|he|she|they|each|in)\b"
    r"|how much\s*[?.]?\s*$"
    r"|\b(?:costs?|price|pay|paid|profit|earn|earnings|earned|spend|spent|money|salary|income"
    r"|revenue|change|owe|bill|worth|charged?|saved?|tip|wages?|budget|discount|tax|fare|fee|loss)\b"
)
_NO_UNIT = re.compile(r"percent|fraction|ratio|probability|^what time|angle")
_NO_MONEY = re.compile(
    r"^how (?:many|long|far|old|tall|fast|often|heavy|high)|^how much (?:time|longer|weight)|weigh|"
    + _NO_UNIT.pattern
)
_KINDS = re.compile(
    r"\b(?:(?P<area>area)|(?P<volume>volume|capacity)|(?P<speed>how fast|speed|velocity)"
    r"|(?P<mass>weigh|mass\b|heavy|heavier)|(?P<age>how old|ages?\b)"
    r"|(?P<long>how long|how much (?:more |less )?time|how much longer)"
    r"|(?P<length>how (?:far|tall|high|deep|wide)|distance|length|height|width|depth|perimeter"
    r"|circumference|radius|diameter|hypotenuse|altitude|side)"
    r"|(?P<angle>angle|degree))|(?P<sign>\\angle|\\circ|°)"
)


def may_omit_unit(question: str, unit: str) -> bool:
    """Return whether an answer without the right answer's `unit` still means the same."""
    if unit == "percent":
        return wants_unit(question, "percent")
    return not _MAGNITUDES & set(unit.split()) or wants_unit(question, unit)


def may_add_unit(question: str, unit: str) -> bool:
    """Return whether an answer may add `unit` to a right answer without one.

    The question must ask for `unit`, or it must ask for nothing else that is counted, measured or
    paid, and have no variables.
    """
    if wants_unit(question, unit):
        return True
    words = frozenset(re.findall(r"[a-z]+", unit.lower()))
    if unit in _CHANGES or words & (_MAGNITUDES | {singular(word) for word in _NO_NOUNS}):
        return False
    request, mentioned = _request(question), mentioned_in(question)
    if (
        request.named
        or request.unit
        or _KINDS.search(request.wanted)
        or _NO_UNIT.search(request.wanted)
    ):
        return False
    if mentioned.variables or _PERCENT.search(request.text) or _FORMULA.search(request.wanted):
        return False
    lower = question.lower()
    used = {name for name, sign in _MONEY_SIGNS.items() if re.search(sign, lower)}
    if unit in _MONEY_SIGNS or unit in CURRENCIES:
        return used <= {unit} and not _NO_MONEY.search(request.wanted)
    if used and _MONEY.search(request.wanted):
        return False
    return unit.partition("^")[0] not in MEASURES or mentioned.units <= {unit}


def wants_unit(question: str, unit: str) -> bool:
    """Return whether `question` wants its answer in `unit`; False in doubt."""
    request = _request(question)
    above, _, below = unit.partition("/")
    if below and re.search(rf"\b(?:per|each|every|an?|one)\s+{below}", request.wanted):
        return wants_unit(question, above) or unit in request.counted
    if request.counts:
        return unit in request.counted
    if request.unit:
        return unit == request.unit
    if unit == "percent":
        return bool(_PERCENT.search(request.text))
    if unit in _MONEY_SIGNS and _is_money(question.lower(), request, unit):
        return True
    return _is_kind(question, request, unit)


def wants_value(question: str, node: Node) -> bool:
    """Return whether the question asks for the value of `node`, as in "Find $x+y$"."""
    requests = [one for one in _SENTENCE.split(question) if _REQUEST.search(one.lower())]
    for match in MATH.finditer(requests[-1] if requests else ""):
        with suppress(Unreadable):
            if canonical_node(parse(plain(next(filter(None, match.groups()))))) == canonical_node(
                node
            ):
                return True
    return False


def is_ratio(
    question: str, gold: Sequence[Fraction | None], answer: Sequence[Fraction | None]
) -> bool:
    """Return whether `gold` has the parts of a ratio, so that any multiple of it is right.

    A time of day is no such ratio. No multiple counts if the question asks for the smallest
    numbers, or itself states the ratio of `answer`. None stands for a part that is not rational.
    """
    lower = question.lower()
    if re.search(r"simpl|lowest|smallest|reduced", lower):
        return False
    if not re.search(r"\b(?:ratios?|proportions?|odds)\b", lower):
        whole = [int(part) for part in gold if part is not None and part.denominator == 1]
        if _TIME.search(lower) or (len(whole) == len(gold) and gcd(*whole) > 1):
            return False
    mentioned = r"\s*(?::|\bto\b|/|\\colon)\s*".join(str(part) for part in answer)
    return re.search(rf"(?<![0-9.]){mentioned}(?![0-9])", lower) is None


@dataclass(frozen=True, slots=True)
class _Request:
    text: str
    """The sentences that contain a request, in lower case."""
    wanted: str
    """The last request."""
    counts: bool
    """Whether the request is for the number of some things."""
    counted: frozenset[str]
    """The counted things, in every way they may be named."""
    named: frozenset[str]
    """The counted things next to the request itself: "How many stay?" has none."""
    unit: str
    """The last unit that is named, as in "in hours" or "to the nearest mile"."""


@lru_cache(maxsize=256)
def _request(question: str) -> _Request:
    lower = " ".join(re.sub(r"\\text\w*\{|\\math\w+\{|[}~]", " ", question.lower()).split())
    sentences = _SENTENCE.split(lower)
    text = " ".join(one for one in sentences if _REQUEST.search(one)) or lower
    last = None
    for match in _WANTED.finditer(text):
        last = match
    wanted = text[last.start() :].lstrip(" ,.;:?!") if last else text
    counts = bool(last and last["count"])
    counted = _counted(text[last.end() :], question) if last and counts else frozenset[str]()
    mentioned = _counted(text[last.end() :], "") if last and counts else frozenset[str]()
    named = [_measure(_tokens(text[match.end() :]), 0)[0] for match in _NAMED_IN.finditer(text)]
    named += [known(match[1]) for match in _NEAREST.finditer(text)]
    unit = next((one for one in reversed(named) if one), "")
    return _Request(text, wanted, counts, counted, mentioned, unit)


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text[:200])[:12]


def _measure(words: list[str], at: int) -> tuple[str, int]:
    """Return the unit of measure that `words` name from `at` on, and the next index; "" if none.

    A written-out unit in the singular does not count: a dollar bill, the second week.
    """
    start = at
    if words[at : at + 1] and words[at] in ("square", "cubic", "sq", "cu"):
        at += 1
    if at >= len(words) or words[at] in ("in", "am", "pm") or not (unit := known(words[at])):
        return "", start
    if words[at] == unit and unit in _ONES:
        return "", start
    at += 1
    if words[at : at + 1] in (["per"], ["/"]) and at + 1 < len(words):
        at += 2
    return canonical(" ".join(words[start:at]).replace(" / ", "/")), at


_ONES = MEASURES - {"m", "cm", "mm", "km", "g", "kg", "mg", "ml", "percent"}
"""The singular words of units: a unit of measure has an s, or is short."""


def _counted(text: str, question: str) -> frozenset[str]:
    """Return the nouns after `how many`; without any, those counted elsewhere in `question`."""
    words, run, plural, at = _tokens(text), list[str](), False, 0
    while at < len(words) and words[at] not in _STOPS and len(run) < 5:
        word = words[at]
        unit, after = _measure(words, at)
        if unit:
            match words[after : after + 2]:
                case ["of", noun]:
                    return frozenset((unit, f"{unit} of {singular(noun)}"))
            return frozenset((unit,))
        if (run or word not in _SKIPPED) and re.fullmatch(r"[a-z'’-]+", word):
            run.append(known(word) or singular(word))
            plural = plural or singular(word) != word
        at = max(after, at + 1)
    if not plural:
        nouns = re.findall(r"[0-9]\s+([a-z]+)", question.lower())
        others = {canonical(noun) for noun in nouns if singular(noun) != noun}
        run += others if len(others) == 1 else ()
    ends = range(1, len(run) + 1)
    mentioned = {" ".join(run[start:end]) for end in ends for start in range(end)}
    return frozenset(
        mentioned if not plural else mentioned - MEASURES
    )  # dollar bills are not dollars


def _is_money(question: str, request: _Request, unit: str) -> bool:
    """Return whether the question asks for a price, and `unit` is its only currency."""
    used = {name for name, sign in _MONEY_SIGNS.items() if re.search(sign, question)}
    wanted = request.wanted
    return used == {unit} and bool(_MONEY.search(wanted)) and not _NO_MONEY.search(wanted)


def _is_kind(question: str, request: _Request, unit: str) -> bool:
    """Return whether `unit` is the only unit in the question for the requested quantity."""
    match = _KINDS.search(request.wanted)
    kind = match.lastgroup if match else None
    base, _, power = unit.partition("^")
    if kind in ("angle", "sign"):
        return unit == "degree" and "radian" not in question.lower()
    powers = {"length": "", "area": "2", "volume": "3"}
    units = mentioned_in(question).units
    if kind in powers and power == powers[kind] and (base == "unit" or base in _LENGTHS):
        return base == "unit" or units & _LENGTHS == {base}
    if kind == "speed":
        return "/" in unit and units & (_LENGTHS | _TIMES) == set(unit.split("/"))
    if kind == "age":
        return unit == "year" and units & _TIMES <= {"year"}
    allowed = {"volume": _VOLUMES, "mass": _MASSES, "long": _TIMES | _LENGTHS}.get(kind or "")
    return allowed is not None and unit in allowed and units & allowed == {unit}
