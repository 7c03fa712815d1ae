"""The step from the text of an answer to its value (see `answer_types`)."""

from __future__ import annotations

import re

from .answer_types import (
    Answer,
    Based,
    Choice,
    Interval,
    Items,
    Quantity,
    Ratio,
    Scalar,
    Words,
)
from .congruences import read_congruences
from .expression import Unreadable, complex_number
from .matrices import read_matrix
from .notation import plain, split_top
from .parser import parse
from .relations import read_relations
from .sets import EMPTY, read_combined, read_named_set
from .units import marked, split_unit

MAX_DEPTH = 6
MAX_ITEMS = 100

_COMMA = re.compile(
    r"[,;](?:\s*(?:\\text\{\s*)?(?:and|or)(?![a-z])(?:\s*\})?)?|\\text\{\s*,?\s*(?:and|or)\s*\}|(?<![a-z\\])(?:and|or)(?![a-z])"
)
_COLON = re.compile(r":")
_TO = re.compile(r"(?<=[0-9])\s*(?:\\text\{\s*to\s*\}|(?<=\s)to(?=\s))\s*(?=[0-9])")
_GROUPED = re.compile(r"-?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_BASED = re.compile(
    r"([0-9A-Z]+)\s*_\s*(?:\{\s*(?:\\text\{\s*)?([0-9]+|ten|two|eight)(?:\s*\})?\s*\}|([0-9]))"
)
_CHOICE = re.compile(
    r"(?P<text>\\text\{\s*)?"
    r"(?:(?:[Tt]he )?(?:(?:[Cc]orrect )?[Aa]nswer|[Oo]ption|[Cc]hoice)(?: is)?\s*:?\s*)?"
    r"(?:\(\s*(?:\\text\{\s*)?(?P<a>[A-Z])(?:\s*\})?\s*\)"
    r"|(?P<b>[A-Za-z])(?P<c>\s*\})?\s*(?:[.)]|:(?= )))[.:]?\s*(?P<rest>.*)",
    re.DOTALL,
)
_CHOSEN = re.compile(
    r"\\text\{\s*(?P<a>[A-Z])\s*\}|(?:\\text\{\s*)?(?:[Oo]ption|[Cc]hoice) (?P<b>[A-Z])(?:\s*\})?"
)
_HEDGE = re.compile(
    r"(?<![A-Za-z])(?:or|and|not|nor|neither|maybe|but|[B-H]|\([A-Z]\))(?![A-Za-z])"
)
_LETTERS = re.compile(r"[^\W\d_][^\W\d_'-]*(?:[ ,.'-][\w: ,.'-]+)?")  # linear: one class at a time
_SHORT_WORDS = frozenset((
    "yes", "no", "odd", "even", "one", "two", "six", "ten", "all", "none", "any", "max", "min",
    "mon", "tue", "wed", "thu", "fri", "sat", "sun", "may", "jan", "feb", "red", "not", "neg",
    "pos", "inf", "dne",
))  # fmt: skip
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
_PIECE = re.compile(r"\\text\{([^{}]*)\}")


def read(text: str, question: str = "", gold: str = "") -> Answer:
    """Return an answer from its text in a box.

    `question` and the right answer `gold` serve to distinguish bare units from variables.

    Raises:
        Unreadable: `text` is no answer that is understood.
    """
    return read_plain(marked(plain(text), question, gold), 0)


def read_plain(text: str, depth: int) -> Answer:
    """Return the answer in `text`, which is in the one spelling already."""
    if not text:
        raise Unreadable("empty")
    if depth > MAX_DEPTH:
        raise Unreadable(f"brackets nested deeper than {MAX_DEPTH}")
    if _GROUPED.fullmatch(text) or _NUMBER.fullmatch(text):
        return Scalar(parse(text))
    value, unit = split_unit(text)
    if unit and (_GROUPED.fullmatch(value) or _NUMBER.fullmatch(value)):
        return Quantity(Scalar(parse(value)), unit)
    for reader in _READERS:
        answer = reader(text, depth)
        if answer is not None:
            return answer
    return _quantity(text, depth)


def _congruences(text: str, depth: int) -> Answer | None:
    return read_congruences(text, depth, read_plain)


def _named_set(text: str, depth: int) -> Answer | None:
    return read_named_set(text, read_plain, depth)


def _choice(text: str, depth: int) -> Answer | None:
    if match := _CHOSEN.fullmatch(text):
        return Choice(match["a"] or match["b"])
    match = _CHOICE.fullmatch(text)
    if match is None:
        return None
    letter, rest = match["a"] or match["b"], match["rest"]
    if match["text"] and not match["c"]:  # \text{C. 3} and \text{(C) } 3
        inside, _, behind = rest.partition("}")
        rest = (
            inside + behind
            if _NUMBER.fullmatch(inside.strip()) or not inside.strip()
            else (rf"\text{{{inside}}}{behind}")
        )
    rest = rest.strip()
    if letter.islower() and (rest or match["b"] is None) and text[1:3] not in (". ", ") "):
        return None
    if _HEDGE.search(_PIECE.sub(r" \1 ", rest)):
        raise Unreadable("more than one choice")
    value = None
    if rest:
        try:
            value = read_plain(rest, depth + 1)
        except Unreadable:
            value = Words(rest)
    return Choice(letter.upper(), value, rest)


def _words(text: str, depth: int) -> Answer | None:
    r"""Return an answer of letters and spaces, or of \text{} and nothing else."""
    del depth
    if text in ("\\emptyset", "\\{\\}", "\\{ \\}"):
        return Items("set", ())
    spoken = _PIECE.sub(lambda match: f" {match[1]} ", text)
    spoken = re.sub(r"\\ |\s+", " ", spoken).strip(" .,")
    if not _LETTERS.fullmatch(spoken):
        return None
    if "\\text" not in text:
        longest = max(map(len, re.findall(r"[^\W\d_]+", spoken)))
        if _COMMA.search(spoken) or (longest < 4 and not _is_word(spoken)):
            return None
        if re.search(r"(?:^|\s)[-.,']|[-.,'](?:\s|$)", spoken):  # an operator, not a hyphen
            return None
    if len(spoken) == 1:
        return None
    return Words(" ".join(re.findall(r"[\w:]+", spoken.casefold())))


def _is_word(text: str) -> bool:
    return text.casefold() in _SHORT_WORDS or (text.isupper() and len(text) > 1)


def _matrix(text: str, depth: int) -> Answer | None:
    return read_matrix(text, depth, read_plain)


def _relations(text: str, depth: int) -> Answer | None:
    return read_relations(text, depth, read_plain)


def _several(text: str, depth: int) -> Answer | None:
    parts, found = split_top(text, _COMMA)
    if not found:
        return None
    return _items("list", parts, depth)


def _items(kind: str, parts: list[str], depth: int) -> Items:
    if len(parts) > MAX_ITEMS:
        raise Unreadable(f"more than {MAX_ITEMS} answers")
    answers = list[Answer]()
    for part in parts:
        answer = read_plain(part, depth + 1)
        # a +- b in a list is two items
        spread = isinstance(answer, Items) and answer.kind == "list" and kind in ("list", "set")
        answers += answer.items if spread and isinstance(answer, Items) else [answer]
    return Items(kind, tuple(answers))  # pyright: ignore[reportArgumentType]


def _combined(text: str, depth: int) -> Answer | None:
    return read_combined(text, read_plain, depth)


_BRACKETS = {"(": ")", "[": "]", "\\{": "\\}", "\\langle": "\\rangle"}


def _bracketed(text: str, depth: int) -> Answer | None:
    opening = next((mark for mark in _BRACKETS if text.startswith(mark)), None)
    ending = next((mark for mark in _BRACKETS.values() if text.endswith(mark)), None)
    if opening is None or ending is None:
        return None
    if not _encloses(text, opening, ending):
        return None
    inside = text[len(opening) : len(text) - len(ending)].strip()
    if opening == "\\{" and ending == "\\}":
        return _set(inside, depth)
    parts, found = split_top(inside, re.compile("[,;]"))
    if opening == "\\langle" and ending == "\\rangle":
        return _items("vector", parts, depth)
    if (opening, ending) == ("(", ")"):
        return _items("tuple", parts, depth) if found else None
    if (opening, ending) == ("[", "]") and len(parts) != 2:
        return _items("closed", parts, depth) if found else None
    if opening not in "([" or ending not in ")]" or len(parts) != 2:
        raise Unreadable("brackets that do not fit together")
    return Interval(parse(parts[0]), parse(parts[1]), opening == "(", ending == ")")


def _encloses(text: str, opening: str, ending: str) -> bool:
    """Return whether the last bracket, and no earlier one, closes the first one."""
    depth, at = 0, 0
    for match in re.finditer(r"\\[{}]|\\[lr]angle|\\.|[][(){}]", text):
        if match[0] in ("(", "[", "{", "\\{", "\\langle"):
            depth += 1
        elif match[0] in (")", "]", "}", "\\}", "\\rangle"):
            depth -= 1
            if depth == 0:
                at = match.end()
                break
    return at == len(text)


def _set(inside: str, depth: int) -> Answer:
    """Return the set {1, 2}, or that of {x | a condition on x}."""
    builder = re.fullmatch(
        r"([a-z])(?:\s*\\in\s*\\reals)?\s*(?:\||:|\\text\{ such that \})\s*(.+)", inside
    )
    if builder is not None:
        return read_plain(builder[2], depth + 1)
    if not inside.strip():
        return EMPTY
    parts, _ = split_top(inside, re.compile("[,;]"))
    return _items("set", parts, depth)


def _special(text: str, depth: int) -> Answer | None:
    if match := _BASED.fullmatch(text):
        named = {"ten": 10, "two": 2, "eight": 8}.get(match[2] or "")
        return Based(match[1], named or int(match[2] or match[3]))
    parts, found = split_top(_TO.sub(":", text), _COLON)
    if found and len(parts) <= 4:
        return Ratio(tuple(read_plain(part, depth + 1) for part in parts))
    return None


def _quantity(text: str, depth: int) -> Answer:
    value, unit = split_unit(text)
    if unit:
        answer = read_plain(value, depth + 1)
        said_twice = isinstance(answer, Quantity) and answer.unit == unit  # $18 dollars
        return answer if said_twice else Quantity(answer, unit)
    if _PLUS_MINUS.search(text):
        return _plus_minus(text)
    return Scalar(complex_number(parse(text)))


def _plus_minus(text: str) -> Answer:
    if len(_PLUS_MINUS.findall(text)) != 1:
        raise Unreadable("more than one plus-minus sign")
    both = [_PLUS_MINUS.sub(f" {sign} ", text) for sign in "+-"]
    return Items("list", tuple(Scalar(parse(one)) for one in both))


_READERS = (
    _congruences, _named_set, _choice, _words, _matrix, _relations, _several, _combined,
    _bracketed, _special,
)  # fmt: skip
"""The readers in the order in which they are tried."""
