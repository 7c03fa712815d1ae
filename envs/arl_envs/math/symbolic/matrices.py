r"""Matrices: rows in any environment, a number before or after them, and systems in braces.

pmatrix, bmatrix, smallmatrix, array in brackets, \pmatrix{...} of plain TeX are all read. A factor
such as \frac{1}{2} stays in `Matrix.scale`, since no question requires a product.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from .answer_types import Answer, Matrix, Scalar
from .expression import Node, Unreadable, number, numeral
from .notation import closing, plain, split_top
from .parser import parse
from .remaining_work import coefficient

Read = Callable[[str, int], Answer]

MAX_ENTRIES = 100
_BEGIN = re.compile(
    r"\\begin\{(?P<name>[pbBvV]?(?:small)?matrix\*?|d?array|cases|aligned|align\*?|gathered|split)\}"
    r"\s*(?:\[[lcrtb]\])?"
)
_COLUMNS = re.compile(r"\s*\{[lcr|:@!>{}. ]*\}")
_PLAIN_TEX = re.compile(r"\\(?P<name>[pbv]?matrix|cases)\s*(?=\{)")
_NEW_ROW = re.compile(r"\\(?:newline|cr|tabularnewline)(?![A-Za-z])")
_T = r"\^\s*\{?\s*(?:T|\\top|\\intercal|\\text\{\s*T\s*\}|t)\s*\}?\s*"
_TRANSPOSED = re.compile(_T)
_TURNED_LIST = re.compile(rf"[(\[](?P<inside>[^()\[\]&]+,[^()\[\]&]+)[)\]]\s*{_T}")
_COMMA = re.compile(",")
_ELSEWHERE = re.compile(r"[=<>,;&]|\\(?:leq|geq|neq|in|cup|begin|text|pm)(?![A-Za-z])")
_BRACKETS = {"(": ")", "[": "]", "\\{": "\\}", "|": "|"}
_BEFORE = re.compile(r"(?:.*[$=:,;?]|.*\\[\[(]|.*(?<![\\A-Za-z])[A-Za-z]{2,}\s)", re.DOTALL)


def read_matrix(text: str, depth: int, read: Read) -> Answer | None:
    """Return the matrix, perhaps times a number, or system of equations in `text`; None if none.

    Raises:
        Unreadable: `text` is a determinant, or the rows differ in length.
    """
    if match := _TURNED_LIST.fullmatch(text):
        parts, _ = split_top(match["inside"], _COMMA)
        return Matrix(tuple((read(part, depth + 1),) for part in parts), is_turned=True)
    if (found := _environment(text)) is None:
        return None
    before, name, inside, after = found
    rows = [row.strip() for row in _NEW_ROW.split(re.sub(r"\\hline(?![a-z])", "", inside))]
    rows = [row for row in rows if row]
    if "matrix" not in name and (name[-5:] != "array" or before.strip() == "\\{") and not after:
        return _system(rows, depth, read) if before.strip() in ("", "\\{") else None
    opening = next((mark for mark in _BRACKETS if before.endswith(mark)), None)
    if opening is not None and after.startswith(_BRACKETS[opening]):
        before, after = before[: -len(opening)].strip(), after[len(opening) :].strip()
    if _ELSEWHERE.search(before + after):
        return None
    if name[0] in "vV" or opening == "|":
        raise Unreadable("a determinant is not worked out")
    entries = tuple(tuple(read(cell.strip(), depth + 1) for cell in row.split("&")) for row in rows)
    if not entries or len({len(row) for row in entries}) != 1:
        raise Unreadable("rows of a matrix that differ in length")
    if sum(map(len, entries)) > MAX_ENTRIES:
        raise Unreadable(f"a matrix with more than {MAX_ENTRIES} entries")
    matrix = Matrix(entries)
    if (match := _TRANSPOSED.match(after)) and 1 in (len(entries), len(entries[0])):
        matrix, after = (
            Matrix(tuple(zip(*entries, strict=True)), is_turned=True),
            after[match.end() :],
        )
    return _scaled(matrix, before.strip(), after.strip())


def _environment(text: str) -> tuple[str, str, str, str] | None:
    r"""Return the text before the first matrix in `text`, its name, its content, the text after."""
    if match := _BEGIN.search(text):
        name, end = match["name"], rf"\end{{{match['name']}}}"
        start = match.end()
        if name.endswith("array") and (columns := _COLUMNS.match(text, start)):
            start = columns.end()
        at = text.find(end, start)
        if at < 0:
            return None
        return text[: match.start()].strip(), name, text[start:at], text[at + len(end) :].strip()
    if match := _PLAIN_TEX.search(text):
        at = closing(text, match.end())
        inside = text[match.end() + 1 : at]
        return text[: match.start()].strip(), match["name"], inside, text[at + 1 :].strip()
    return None


def _system(rows: list[str], depth: int, read: Read) -> Answer | None:
    """Return a system of equations, one a row; a definition by cases is refused."""
    rows = [re.sub(r"\s*&?\s*=\s*&?\s*", "=", row).rstrip(" ,.;") for row in rows]
    if not rows or any("&" in row or len(re.findall("[=<>]", row)) != 1 for row in rows):
        raise Unreadable("neither a matrix nor equations")
    return read(", ".join(rows), depth + 1)


def _scaled(matrix: Matrix, before: str, after: str) -> Matrix | None:
    factors = list[Node]()
    before = re.sub(r"\s*(?:\\cdot|\\times|\*)$", "", before).strip()
    if before:
        factors.append(number(-1) if before == "-" else parse(before))
    if match := re.match(r"(?:\\cdot|\\times|\*|(?P<by>/))\s*(?=\S)", after):
        factor = parse(after[match.end() :])
        factors.append(Node("quotient", (number(1), factor)) if match["by"] else factor)
    elif after:
        return None
    if not factors:
        return matrix
    scale = factors[0] if len(factors) == 1 else Node("product", tuple(factors))
    return Matrix(matrix.rows, scale, matrix.is_turned)


def entries(matrix: Matrix) -> tuple[tuple[Answer, ...], ...]:
    """Return the rows, multiplied by the factor of the matrix."""
    scale = matrix.scale
    if scale is None:
        return matrix.rows
    return tuple(tuple(_times(scale, entry) for entry in row) for row in matrix.rows)


def _times(scale: Node, entry: Answer) -> Answer:
    if not isinstance(entry, Scalar):
        raise Unreadable("a number times something that is no number")
    by = numeral(entry.node)
    if by is None:
        return Scalar(Node("product", (scale, entry.node)))
    value, rest = coefficient(scale)
    return Scalar(_term(value * by.value, rest))


def _term(value: Fraction, rest: tuple[Node, ...]) -> Node:
    """Return `value` times the product of `rest`, in the shortest notation."""
    if value < 0:
        return Node("negative", (_term(-value, rest),))
    factors = rest if value.numerator == 1 and rest else (number(value.numerator), *rest)
    above = factors[0] if len(factors) == 1 else Node("product", factors)
    if value == 0:
        return number(0)
    if value.denominator == 1:
        return above
    return Node("quotient", (above, number(value.denominator)))


def is_given(matrix: Matrix, question: str) -> bool:
    """Return whether `question` has this product of a number and a matrix, or this transpose."""
    if matrix.is_turned and re.search(r"transpos|\^\s*\{?\s*(?:T\b|\\top)", question):
        return True
    for match in _BEGIN.finditer(question):
        before = _BEFORE.sub("", question[max(0, match.start() - 60) : match.start()])
        behind = question[match.start() : match.start() + 600]
        end = behind.find(rf"\end{{{match['name']}}}") + len(rf"\end{{{match['name']}}}")
        behind = behind[:end] + re.split(r"[$.,;?=]|\\[\])]", behind[end:])[0]
        try:
            found = read_matrix(plain(before + behind), 0, _cell)
        except Unreadable:
            continue
        if isinstance(found, Matrix) and found.scale is not None and found == matrix:
            return True
    return False


def _cell(text: str, depth: int) -> Answer:
    del depth
    return Scalar(parse(text))
