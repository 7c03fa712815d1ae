"""One tree for all notations of an expression that differ without any work."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from .expression import Node, number, numeral

_ZERO, _ONE = number(0), number(1)


def canonical(node: Node) -> Node:
    r"""Return the canonical form of `node`; nothing is multiplied out, cancelled or added up.

    Sums and products are flat and in one order, x x is x^2, a^{-1} and a / b are quotients,
    a^{1/2} is a root, minus signs are in front, and there is no + 0 and no factor 1.
    """
    node = Node(node.op, tuple(map(canonical, node.args)), node.name, node.value)
    match node.op:
        case "sum":
            return _sum(list(node.args))
        case "negative":
            return _negative(node.args[0])
        case "power":
            return _power(*node.args)
        case "product" | "quotient":
            return _ratio(node)
    return node


def _sum(args: list[Node]) -> Node:
    flat = [part for arg in args for part in (arg.args if arg.op == "sum" else (arg,))]
    return _joined("sum", [part for part in flat if part != _ZERO], _ZERO)


def _joined(op: str, parts: list[Node], nothing: Node) -> Node:
    if len(parts) < 2:
        return parts[0] if parts else nothing
    return Node(op, tuple(sorted(parts, key=repr)))


def _negative(inner: Node) -> Node:
    if inner.op == "negative" or inner == _ZERO:
        return inner.args[0] if inner.args else inner
    if inner.op == "sum":
        return _sum([_negative(term) for term in inner.args])
    return Node("negative", (inner,))


def _power(base: Node, exponent: Node) -> Node:
    found = numeral(exponent)
    if found is None:
        return Node("power", (base, exponent))
    if found.value < 0:
        return _ratio(Node("quotient", (_ONE, _power(base, _spelled(-found.value)))))
    if found.value == 1:
        return base
    if found.value.numerator == 1:
        return Node("root", (number(found.value.denominator), base))
    return Node("power", (base, _spelled(found.value)))


def _spelled(value: Fraction) -> Node:
    if value.denominator == 1:
        return number(value)
    return Node("quotient", (number(value.numerator), number(value.denominator)))


def _ratio(node: Node) -> Node:
    above, below = list[Node](), list[Node]()
    minus = _gather(node, above, below)
    product = _joined("product", _repeated(above), _ONE)
    if divisors := _repeated(below):
        product = Node("quotient", (product, _joined("product", divisors, _ONE)))
    return _negative(product) if minus else product


def _gather(node: Node, above: list[Node], below: list[Node]) -> bool:
    """Add the factors of `node` to both lists; return whether they have a minus sign together."""
    match node:
        case Node(op="negative", args=(inner,)):
            return not _gather(inner, above, below)
        case Node(op="quotient", args=(one, other)):
            return _gather(one, above, below) != _gather(other, below, above)
        case Node(op="product", args=factors):
            return sum(_gather(factor, above, below) for factor in factors) % 2 == 1
    above.append(node)
    return False


def _repeated(factors: list[Node]) -> list[Node]:
    """Return `factors` with x x as x^2; x^2 x stays, as adding exponents is work."""
    found = list[Node]()
    for factor, times in Counter(factors).items():
        if factor.op in ("number", "power"):
            found += [factor] * (0 if factor == _ONE else times)
        else:
            found.append(factor if times == 1 else Node("power", (factor, number(times))))
    return found
