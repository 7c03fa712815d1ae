r"""Names on the left of an equals sign, for the value on its right.

x, a_{n+1}, f^{-1}(x), f(2), |AB|, \angle ABC, \frac{dy}{dx}, P(A), \det A, \lim_{x\to0}f(x) are
names, and so are several at once: (p,q), or the ratios V_1:V_2 and \frac{NO}{BO}. x+y, |x|,
\frac{y}{x} and \sin x are not names: an equation with these is a statement about x.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .answer_types import Answer, Items, Named, Ratio, Scalar
from .expression import number
from .notation import split_top

_INDEX = r"(?:\s*_\s*(?:\{[^{}=]{1,40}\}|\\triangle\s*[A-Z]{3}|[A-Za-z0-9]))?"
_PRIMES = r"(?:'+|\s*\^\s*(?:\{\s*(?:(?:\\prime\s*)+|\(\s*[0-9n]\s*\))\s*\}|\\prime))?"
_INVERSE = r"(?:\s*\^\s*\{\s*-\s*1\s*\})?"
_LETTER = rf"(?:[A-Za-z]|\\[A-Za-z]+){_INDEX}{_PRIMES}"
_VECTOR = rf"\\(?:vec|hat|bar|tilde|text|overline|underline)\s*\{{\s*[A-Za-z]{{1,2}}\s*\}}{_INDEX}"
_SEGMENT = r"[A-Z]{2,4}"
_LENGTH = rf"\|\s*(?:\\(?:vec|overline)\s*\{{?\s*)?(?:{_SEGMENT}|{_VECTOR}|[A-Z])\s*\}}?\s*\|"
_AREA = rf"\[\s*{_SEGMENT}\s*\]"
_MEASURE = rf"(?:{_SEGMENT}|{_LENGTH}|{_AREA}|[A-Z]{_INDEX[:-1]})"
_ARGUMENT = r"\s*\([^()=<>]{1,30}\)"
_FUNCTION_NAME = rf"[fghFGHPQpq]{_INDEX}{_PRIMES}{_INVERSE}"
APPLIED = re.compile(rf"(?P<function>{_FUNCTION_NAME}){_ARGUMENT}")
_FUNCTION = (
    rf"{_LETTER}{_INVERSE}\s*\(\s*{_LETTER}(?:\s*,\s*{_LETTER})*\s*\)|{_FUNCTION_NAME}{_ARGUMENT}"
    rf"|[A-Zfgh]{_INVERSE}|[fghFGH]{_PRIMES}\s*\(\s*[fghFGH]{_PRIMES}{_ARGUMENT}\s*\)"
    rf"|\(\s*[fghFGH]\s*(?:\\circ|\\cdot|[-+/])?\s*[fghFGH]\s*\){_INVERSE}{_ARGUMENT}"
    rf"|[fghFGH]\s*\\circ\s*[fghFGH](?:{_ARGUMENT})?"
)
_ANGLE = r"(?:m\s*)?\\(?:measured)?angle\s*(?:[A-Z]{1,3}|[0-9]|\\[a-z]+)"
_OF_ANGLE = (
    r"\\(?:sin|cos|tan|cot|sec|csc)\s*"
    rf"(?:\\(?:theta|alpha|beta|gamma|phi)|[A-Z]{{1,3}}|{_ANGLE})"
)
_COMPUTED = (
    r"\\(?:lim|int|iint|iiint|oint|sum|prod|det|dim|deg|ker|Pr|arg|sup|inf)(?![A-Za-z]).{1,200}"
)
_D = r"\{\s*(?:d|\\partial)[^{}=]*(?:\{[0-9]\}[^{}=]*)?\}\s*"
_ONE = (
    rf"{_LETTER}|{_VECTOR}|{_SEGMENT}|{_LENGTH}|{_AREA}|{_FUNCTION}|{_ANGLE}|{_OF_ANGLE}"
    r"|(?:\\angle\s*)?\\text\{[A-Za-z ]+\}(?:\s*[(\[][^()=]{1,30}[)\]])?"
    rf"|[PE]\s*[(\[].{{1,40}}[)\]]|\\frac\s*{_D}{_D}.{{0,30}}|{_COMPUTED}"
)
_NAME = re.compile(_ONE, re.DOTALL)
_LIST = re.compile(rf"\(\s*(?:{_LETTER}|{_SEGMENT})(?:\s*,\s*(?:{_LETTER}|{_SEGMENT}))+\s*\)")
_QUOTIENT = re.compile(
    rf"\\frac\s*\{{\s*(?P<a>{_MEASURE})\s*\}}\s*\{{\s*(?P<b>{_MEASURE})\s*\}}"
    rf"|(?P<c>{_MEASURE})\s*/\s*(?P<d>{_MEASURE})"
)
_NO_NAME = frozenset(("e", "i", "\\pi", "\\infty"))
_BETWEEN = ", "
"""The separator of several names in one; no name contains a space."""


def name_of(text: str) -> str:
    """Return the name that `text` is, in the one spelling; "" if it is not a name."""
    if text in _NO_NAME:
        return ""
    if _LIST.fullmatch(text):
        return several(split_top(text[1:-1], re.compile(","))[0])
    if match := _QUOTIENT.fullmatch(text):
        one, other = (part for part in match.groups() if part)
        return f"{_plain(one)}:{_plain(other)}"
    parts, colons = split_top(text, re.compile(":"))
    if colons and all(map(_NAME.fullmatch, parts)):
        return ":".join(map(_plain, parts))
    return _plain(text) if _NAME.fullmatch(text) else ""


def _plain(text: str) -> str:
    text = re.sub(r"\\(?:vec|overline|text|triangle)(?![A-Za-z])|^\s*m\s*(?=\\angle)", "", text)
    return re.sub(r"\\measuredangle", r"\\angle", re.sub(r"[\s{}|]", "", text))


def several(names: Sequence[str]) -> str:
    """Return one name for all of `names`, in this order."""
    return f"({_BETWEEN.join(map(_plain, names))})"


def _parts(name: str) -> list[str]:
    if ":" in name:
        return name.split(":")
    return name[1:-1].split(_BETWEEN) if _BETWEEN in name else [name]


def renamed(answer: Named, name: str) -> Named:
    """Return `answer` with its parts in the order of `name`; itself if the parts differ."""
    ours, theirs = _parts(name), _parts(answer.name)
    if ours == theirs or sorted(ours) != sorted(theirs) or len(set(ours)) < len(ours):
        return answer
    return Named(name, _permuted(answer.value, [theirs.index(part) for part in ours]))


def _permuted(value: Answer, order: list[int]) -> Answer:
    match value:
        case Items(kind="tuple", items=parts) if len(parts) == len(order):
            return Items("tuple", tuple(parts[at] for at in order))
        case Ratio(parts=parts) if len(parts) == len(order):
            return Ratio(tuple(parts[at] for at in order))
        case Items(kind="list" | "set" as kind, items=items):
            return Items(kind, tuple(_permuted(item, order) for item in items))
    return value


def as_asked(answer: Named, question: str) -> tuple[Answer, ...] | None:
    """Return the values of several names in the order of their names in `question`, if all names
    are there, or else in the written order; None if `answer` is no tuple with several names."""
    names = _parts(answer.name)
    if _BETWEEN not in answer.name or not isinstance(answer.value, Items):
        return None
    if answer.value.kind != "tuple":
        return None
    last = re.split(r"(?<=[.?!])\s+", question.strip())[-1]
    places = [re.search(rf"(?<![A-Za-z\\]){re.escape(name)}(?![A-Za-z])", last) for name in names]
    if all(places):
        at = [place.start() for place in places if place]
        return tuple(answer.value.items[i] for i in sorted(range(len(at)), key=at.__getitem__))
    return answer.value.items


def in_order_of_names(answer: Named) -> Answer:
    """Return the value with its parts in alphabetical order of the names, as in (1, 2) for x, y."""
    if _BETWEEN not in answer.name:
        return answer.value
    return renamed(answer, f"({_BETWEEN.join(sorted(_parts(answer.name)))})").value


def with_ratio(answer: Named) -> Named:
    """Return `answer`, but a quotient of two names as a ratio: a/b = 3 is a:b = 3:1."""
    if ":" in answer.name and isinstance(answer.value, Scalar):
        return Named(answer.name, Ratio((answer.value, Scalar(number(1)))))
    return answer
