"""An expression as a tree, as it was written: nothing is ever worked out here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd


class Unreadable(ValueError):
    """The error for text that is no answer in the notation of this package; it gives the reason."""


@dataclass(frozen=True, slots=True)
class Node:
    """An operation and its operands.

    `op`: number (`value`), symbol and constant (`name`), sum, negative, product, quotient,
    power, root (of the second operand, the first being the degree), call (`name`), factorial,
    binomial, abs, floor, ceiling. Two trees are equal if they are spelled alike.
    """

    op: str
    args: tuple[Node, ...] = ()
    name: str = ""
    value: Fraction | None = None
    decimal: bool = field(default=False, compare=False)
    """Whether the number is written with a decimal point."""


def number(value: int | Fraction) -> Node:
    return Node("number", value=Fraction(value))


def walk(node: Node) -> Iterator[Node]:
    """Yield `node` and every node in it."""
    pending = [node]
    while pending:
        at = pending.pop()
        yield at
        pending += at.args


def symbols(node: Node) -> frozenset[str]:
    """Return the names of the variables."""
    return frozenset(at.name for at in walk(node) if at.op == "symbol")


@dataclass(frozen=True, slots=True)
class Numeral:
    """A rational number that is spelled out."""

    value: Fraction
    proper: bool
    """Whether the number is finished: a fraction is in lowest terms, its denominator above 1."""


def numeral(node: Node) -> Numeral | None:
    """Return the spelled-out number: whole, decimal, fraction, mixed, scientific; else None."""
    match node:
        case Node(op="number", value=Fraction() as value):
            return Numeral(value, True)
        case Node(op="negative", args=(Node(op="number" | "quotient" | "product") as inner,)):
            found = numeral(inner)
            if found is None or found.value < 0:
                return None
            return Numeral(-found.value, found.proper)
        case Node(op="quotient", args=(above, below)):
            return _fraction(_signed(above), _signed(below))
        case Node(op="product", args=(mantissa, Node(op="power", args=(ten, exponent)))):
            return _scientific(_signed(mantissa), ten.value, _signed(exponent))
    return None


def _signed(node: Node) -> Fraction | None:
    if node.op == "negative" and node.args[0].op == "number":
        value = node.args[0].value
        return None if value is None else -value
    return node.value if node.op == "number" else None


def _fraction(above: Fraction | None, below: Fraction | None) -> Numeral | None:
    if above is None or not below or above.denominator != 1 or below.denominator != 1:
        return None
    proper = abs(below) > 1 and gcd(above.numerator, below.numerator) == 1
    return Numeral(above / below, proper)


def complex_number(node: Node) -> Node:
    """Return `node`; of a + bi with a or b 0, the other part alone; 1i loses its 1."""
    if node.op != "sum" or len(node.args) != 2:
        return _imaginary(node) or node
    for at in (0, 1):
        real, imaginary = node.args[1 - at], _imaginary(node.args[at])
        if imaginary is None or not _is_real(real):
            continue
        if real == _ZERO:
            return imaginary
        if _ZERO in _factors(imaginary):
            return real
        return Node("sum", (real, imaginary)[:: 1 if at else -1])
    return node


_ZERO, _I = number(0), Node("constant", name="i")


def _factors(node: Node) -> tuple[Node, ...]:
    return _factors(node.args[0]) if node.op == "negative" else node.args


def _is_real(node: Node) -> bool:
    return not symbols(node) and _I not in walk(node)


def _imaginary(node: Node) -> Node | None:
    """Return `node` if it is a number times i, without a factor 1; else None."""
    match node:
        case Node(op="constant", name="i"):
            return node
        case Node(op="negative", args=(inner,)) if (found := _imaginary(inner)) is not None:
            return Node("negative", (found,))
        case Node(op="product", args=factors) if factors.count(_I) == 1:
            others = tuple(factor for factor in factors if factor != _I)
            if all(map(_is_real, others)):
                return _I if others == (number(1),) else node
    return None


MAX_EXPONENT = 400
"""The largest exponent of ten in scientific notation."""


def _scientific(
    mantissa: Fraction | None, ten: Fraction | None, exponent: Fraction | None
) -> Numeral | None:
    """Return the value if one digit is before the point: 37 * 10^2 is a product to work out."""
    if mantissa is None or ten != 10 or exponent is None or exponent.denominator != 1:
        return None
    if abs(exponent) > MAX_EXPONENT or not 1 <= abs(mantissa) < 10:
        return None
    return Numeral(mantissa * Fraction(10) ** exponent.numerator, True)
