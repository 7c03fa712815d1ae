r"""Final answers: where they stand in a message, and the reader of numbers.

The last \boxed{} must hold exactly the number. Notation by kind (spaces around the number do not
matter):

    integer    -12   1,234   1{,}234
    decimal    the same, or digits on both sides of one point: 12.50 equals 12.5
    fraction   -3/4  \frac{3}{4}  -\frac{3}{4}   in lowest terms, denominator above 1

Commas must group the digits by exactly three. Everything else is no number: expressions that
are still to be worked out (37*91), units, powers of ten, words. Without this rule, a policy
would get a reward for repeating the question.

In replies to rows, only text that is marked as the answer counts, and the last such text: a
correction replaces an earlier answer. Boxes with nothing but "and", "or" or a comma between them
are one answer with several parts. The last number of unmarked prose never counts. Marks:

    boxed      \boxed{...}, as the prompt asks, or \fbox{...}, or \boxed 7
    anchored   a box, or a line after ####, or <answer>...</answer>, or "The answer is ...", or
               "Answer:", or a heading such as "### Final Answer" with the answer below
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Literal

Kind = Literal["integer", "decimal", "fraction"]

_MAX_CHARS = 64
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_INTEGER = re.compile(rf"-?{_DIGITS}")
_DECIMAL = re.compile(rf"-?{_DIGITS}(?:\.[0-9]+)?")
_FRACTION = re.compile(
    r"(?P<sign>-?)(?:(?P<a>[0-9]+)\s*/\s*(?P<b>[0-9]+)"
    r"|\\[dt]?frac\{\s*(?P<c>[0-9]+)\s*\}\{\s*(?P<d>[0-9]+)\s*\})"
)


class MathVerdict(StrEnum):
    """The judge's result for an answer."""

    OK = "ok"
    WRONG = "wrong"
    UNPARSEABLE = "unparseable"
    TIMEOUT = "timeout"
    """A verifier that ran out of time or memory twice: the answer gets no reward and is counted."""
    CRASH = "crash"
    """A failure of the verifier: nothing is known about the answer, so there is no reward."""


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{`; None without one, or if its brace never closes.

    Only the last one counts: a correction replaces an earlier answer.
    """
    opening = r"\boxed{"
    at = text.rfind(opening)
    if at < 0:
        return None
    start = at + len(opening)
    end = closing_brace(text, start)
    return None if end is None else text[start:end]


def closing_brace(text: str, start: int) -> int | None:
    """Return the index of the brace that closes the one just before `start`; None if none does."""
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.start()
    return None


def read_number(text: str, kind: Kind) -> Fraction | None:
    """Return the number that `text` spells in the notation of `kind`; None if there is none."""
    text = text.strip(" ")
    if len(text) > _MAX_CHARS:
        return None
    if kind == "fraction":
        return _read_fraction(text)
    text = text.replace("{,}", ",")
    pattern = _INTEGER if kind == "integer" else _DECIMAL
    return Fraction(Decimal(text.replace(",", ""))) if pattern.fullmatch(text) else None


def _read_fraction(text: str) -> Fraction | None:
    match = _FRACTION.fullmatch(text)
    if match is None:
        return None
    above, below = int(match["a"] or match["c"]), int(match["b"] or match["d"])
    if below <= 1 or math.gcd(above, below) != 1:
        return None
    return Fraction(-above if match["sign"] else above, below)


Mark = Literal["boxed", "anchored"]

_BOX = re.compile(
    r"\\(?:boxed|fbox|framebox)\s{0,8}\{"
    r"|\\boxed(?:\s{0,8}(?=[-+]?\.?[0-9]|\\(?:d?frac|sqrt|pi|text)(?![A-Za-z]))"
    r"|\s{1,8}(?=[A-Za-z]\s{0,8}(?:[$.,;=+*/^-]|$)))",
    re.MULTILINE,
)
"""A box; one without a brace counts only before a possible answer: prose may name \\boxed."""
_BARE = re.compile(r"(?:(?!\$|\\[)\]]|[.!](?:\s|$))[^\n]){1,200}")
_DELIMITERS = re.compile(r"\\[()\[\]]|\\text\{|\\(?:q?quad|[,;: ])|[$*}\s]+")
_JOINT = re.compile(r"(?:[,;]? ?(?:and|or)|[,;])(?: [A-Za-z]\w? ?=)?", re.IGNORECASE)
_MOST_BETWEEN = 60
"""The most characters between two boxes of one answer."""

_MARKS = r"(?:[^\w\n]|_){0,12}"
_SPACE = r"[ \t*_`}]{0,12}"
_LABEL = (
    rf"^{_MARKS}(?:[0-9]{{1,2}}[.)]{_MARKS})?(?:\\(?:text\w{{0,4}}|(?:sub)*section\*?)\{{)?"
    r"(?:(?:the|my)[ \t]{1,4})?(?:(?:final|correct)[ \t]{1,4})?answer"
)
_BELOW = r"\n\s{0,100}(?P<answer>[^\n]{1,500}(?:\n[^\n]{1,500}){0,5})"
# Every repetition has a bound, so that the time is linear in the length of the text.
_ANCHORS = (
    re.compile(r"^[ \t]{0,8}####[ \t]{0,8}(?P<answer>[^\s][^\n]{0,2000})", re.MULTILINE),
    re.compile(r"<answer>(?P<answer>(?:(?!<answer>)[\s\S]){0,2000}?)</answer>", re.IGNORECASE),
    re.compile(
        r"(?:the|my)[ \t*_]{1,8}(?:(?:final|correct)[ \t*_]{1,8})?answer[ \t*_]{1,8}is(?![a-z])"
        r"[ \t*_]{0,8}(?::[ \t*_]{0,8}\n\s{0,100}(?P<answer>[^\n]{1,500})"
        r"|:?[ \t]{0,8}(?P<after>[^\n]{1,500}))",
        re.IGNORECASE,
    ),
    re.compile(
        rf"{_LABEL}{_SPACE}[:=]{_SPACE}(?:{_BELOW}|(?P<after>[^\n]{{1,500}}))",
        re.IGNORECASE | re.MULTILINE,
    ),
    re.compile(
        rf"^(?=[ \t]{{0,8}}(?:[^\w\s]|_)|[^\n]{{0,60}}\n[ \t]{{0,8}}(?:==|--)){_LABEL}{_SPACE}"
        rf"#{{0,6}}[ \t]{{0,8}}(?:\n[ \t]{{0,8}}(?:={{2,80}}|-{{2,80}})[ \t]{{0,8}})?{_BELOW}",
        re.IGNORECASE | re.MULTILINE,
    ),
)
_HEADING = re.compile(rf"{_LABEL}{_SPACE}(?:[:#]|$)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[^\s])[.!](?=\s|$)")
_BULLET = re.compile(r"[-+*•][ \t]+(?=[*_$]|\\\()")
_EMPHASIS = re.compile(
    r"(?<![\w)}\]*_])(?P<mark>[*_]{1,3}|`)(?P<text>\S|\S.*?\S)(?P=mark)(?![\w({\[\\*_])"
)


def final_answer(text: str, mark: Mark) -> str | None:
    """Return the final answer of `text`; None if nothing is marked as one."""
    box, boxed = last_box(text)
    if mark == "boxed":
        return boxed
    found = [match for pattern in _ANCHORS for match in pattern.finditer(text)]
    found = [match for match in found if not _HEADING.match(_inside(match))]
    last = max(found, key=lambda match: match.start(), default=None)
    if last is None or last.start() <= box:
        return boxed
    return _sentence(_inside(last))


def _inside(match: re.Match[str]) -> str:
    return next(filter(None, match.groups()), "")


def last_box(text: str) -> tuple[int, str | None]:
    """Return the index of the last box that is in no other box (-1: there is none), and its content
    (None: its brace never closes). Time is linear in the text."""
    start, inside, last_end, at = -1, list[str](), 0, 0
    while (opening := _BOX.search(text, at)) is not None:
        start, at = opening.start(), opening.end()
        if opening[0].endswith("{"):
            end = closing_brace(text, at)
        else:
            bare = _BARE.match(text, at)
            end = bare.end() if bare else at
        if end is None:
            return start, None
        if not (inside and _is_joint(text[last_end:start])):
            inside = []
        inside.append(text[at:end].strip())
        at = last_end = end + (opening[0].endswith("{"))
    return start, ", ".join(dict.fromkeys(inside)) if start >= 0 else None


def _is_joint(between: str) -> bool:
    """Return whether two boxes with the text `between` them are one answer."""
    if len(between) > _MOST_BETWEEN:
        return False
    return _JOINT.fullmatch(" ".join(_DELIMITERS.sub(" ", between).split())) is not None


def _sentence(text: str) -> str:
    """Return `text` up to the end of its first sentence, without Markdown marks."""
    text = _BULLET.sub("", re.sub(r"[ \t]+#+[ \t]*$", "", text.strip()), count=1)
    end = _SENTENCE_END.search(text)
    text = _EMPHASIS.sub(r"\g<text>", text[: end.start()] if end else text)
    return re.sub(r"(?<=[^\s*_])(?:\*{1,3}|_{2,3}|`)[ \t]*$", "", text).strip()
