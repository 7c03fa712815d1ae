"""The work that is left to be done in an expression, and its form: a sum of so many terms, a
product of such factors.

An answer may not leave more work than the right answer does: the reply "37 * 91" to the
question "37 * 91" is worth nothing. Each kind of work has a word:

    arithmetic   numbers to add or multiply, like terms, a fraction to reduce, a root of a square
    power        a number to a whole power            factorial, binomial, abs, rounding
    trig, log, choice (max, gcd, ...)                 functions

Closed forms are made of roots, fractional powers, pi, e and i, so these are no work. To multiply
out a product is no work either.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import isqrt

from .expression import Node, numeral, symbols, walk

_TERMS = ("sum", "negative", "product")


def form(node: Node) -> str:
    """Return a word that two expressions share if they look alike; `node` must be `canonical`.

    Order, signs and rational coefficients are left out: (x+2)(x+3), (x+3)(2+x) and (x-2)(x-3) look
    alike, x^2+5x+6 does not. For an expression without variables, only its roots and constants
    count, each with its place in a numerator or denominator.
    """
    if node.op == "negative":
        return form(node.args[0])
    if not symbols(node):
        return f"number {sorted(_blocks(node, False))}"
    if node.op == "sum":
        return f"sum {sorted(map(form, node.args))}"
    if node.op in ("product", "quotient"):
        return _product(node)
    if node.op == "power":
        return f"power {form(node.args[0])} {node.args[1]}"
    return repr(node)


def operations(node: Node) -> int:
    """Return the number of operations to carry out, without signs and the fractions of numbers."""
    if not node.args or numeral(node) is not None:
        return 0
    own = {"sum": len(node.args) - 1, "product": len(node.args) - 1, "negative": 0}.get(node.op, 1)
    return own + sum(map(operations, node.args))


def _product(node: Node) -> str:
    above, below = node.args if node.op == "quotient" else (node, None)
    factors = list(above.args if above.op == "product" else (above,))
    divisors = [] if below is None else list(below.args if below.op == "product" else (below,))
    kept = [factor for factor in factors if numeral(factor) is None]
    under = [divisor for divisor in divisors if numeral(divisor) is None]
    if len(kept) == 1 and not under and (len(factors) == 1 or kept[0].op != "sum"):
        return form(kept[0])  # (x+6)/2 is x/2+3, but 2(x+3) is not 2x+6
    return f"product {sorted(map(form, kept))} / {sorted(map(form, under))}"


def _blocks(node: Node, below: bool) -> set[str]:
    """Return the roots, constants and the like, marked with 1/ in a denominator."""
    if node.op == "number":
        return set()
    if node.op == "quotient":
        return _blocks(node.args[0], below) | _blocks(node.args[1], not below)
    if node.op not in _TERMS:
        return {f"{'1/' * below}{node}"}
    found = {block for arg in node.args for block in _blocks(arg, below)}
    irrational = [arg for arg in node.args if numeral(arg) is None]
    if node.op == "product" and len(irrational) > 1 and any(a.op == "sum" for a in irrational):
        found.add("not multiplied out")
    return found


_CALLS = {"ln": "log", "log": "log"} | dict.fromkeys(("gcd", "lcm", "max", "min"), "choice")
_WORDS = {
    "factorial": "factorial",
    "binomial": "binomial",
    "abs": "abs",
    "floor": "rounding",
    "ceiling": "rounding",
}


def remaining_work(node: Node) -> frozenset[str]:
    """Return the kinds of work that are left in `node`."""
    if numeral(node) is not None:
        return frozenset() if numeral(node).proper else frozenset({"arithmetic"})  # pyright: ignore[reportOptionalMemberAccess]
    found = set[str]()
    for at in walk(node):
        if at.op in _WORDS:
            found.add(_WORDS[at.op])
        elif at.op == "call":
            found.add(_CALLS.get(at.name, "trig"))
        elif at.op == "power" and _is_power_of_number(at):
            found.add("power")
        elif _is_arithmetic(at):
            found.add("arithmetic")
    return frozenset(found)


def allowed_work(node: Node) -> frozenset[str]:
    """Return the work that an answer may leave if `node` is right: n! may stand for a binomial."""
    found = remaining_work(node)
    if "binomial" in found:
        found |= {"factorial", "power", "arithmetic"}
    return found | {"binomial", "power"} if "factorial" in found else found


def _is_power_of_number(node: Node) -> bool:
    base, exponent = node.args
    fixed = numeral(exponent)
    if fixed is None or fixed.value.denominator != 1 or fixed.value == -1 or symbols(base):
        return False  # x^{-1} is another way to write 1/x
    return not (base.op == "constant" and base.name in ("e", "pi"))


def _is_arithmetic(node: Node) -> bool:
    match node:
        case Node(op="sum", args=terms):
            parts = [coefficient(part) for term in terms for part in _flat(term)]
            rests = {rest for _, rest in parts}
            return len(rests) < len(parts) or any(value == 0 for value, _ in parts)
        case Node(op="product", args=factors):
            plain = [factor for factor in factors if _rational(factor) is not None]
            return len(plain) > 1 or any(_rational(one) in (0, 1) for one in plain)
        case Node(op="quotient", args=(above, below)):
            return _reducible(above, below)
        case Node(op="root", args=(degree, radicand)):
            return _is_perfect(degree, radicand)
        case Node(op="negative", args=(inner,)):
            return inner.op == "negative"
    return False


def _rational(node: Node) -> Fraction | None:
    found = numeral(node)
    return None if found is None else found.value


def coefficient(term: Node) -> tuple[Fraction, tuple[Node, ...]]:
    """Return the coefficient of a term and its other factors, sorted: 2 and (x, y) for 2xy."""
    value = _rational(term)
    if value is not None:
        return value, ()
    match term:
        case Node(op="negative", args=(inner,)):
            value, rest = coefficient(inner)
            return -value, rest
        case Node(op="quotient", args=(above, below)) if by := _rational(below):
            value, rest = coefficient(above)
            return value / by, rest
        case Node(op="product", args=factors):
            number, rest = Fraction(1), list[Node]()
            for factor in factors:
                value, more = coefficient(factor)
                number *= value
                rest += more
            return number, tuple(sorted(rest, key=repr))
    return Fraction(1), (term,)


def _flat(term: Node) -> Iterator[Node]:
    """Yield the terms of a sum within a sum; their signs do not matter here."""
    inner = term.args[0] if term.op == "negative" else term
    if inner.op != "sum":
        yield term
        return
    for part in inner.args:
        yield from _flat(part)


def _reducible(above: Node, below: Node) -> bool:
    """Return whether numbers can be cancelled: 4 pi / 2, x / 1; a sum is checked term by term."""
    divisor = _rational(below)
    if divisor is None:
        divisor = coefficient(below)[0] if below.op == "product" else Fraction(1)
        if abs(divisor) == 1:
            return False
    if abs(divisor) in (0, 1):
        return True
    terms = above.args if above.op == "sum" else (above,)
    values = [coefficient(term)[0] for term in terms]
    if divisor.denominator != 1 or any(value.denominator != 1 for value in values):
        return False
    common = divisor.numerator
    for value in values:
        common = _gcd(common, value.numerator)
    return common > 1


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return abs(a)


def _is_perfect(degree: Node, radicand: Node) -> bool:
    """Return whether the root is a rational number."""
    value, order = _rational(radicand), _rational(degree)
    if value is None or value < 0 or order is None:
        return False
    if order == 2:
        return all(isqrt(n) ** 2 == n for n in (value.numerator, value.denominator))
    if order.denominator != 1 or not 2 < order <= 64:
        return False
    return all(round(n ** (1 / int(order))) ** int(order) == n for n in _small(value))


def _small(value: Fraction) -> tuple[int, int]:
    """Return numerator and denominator; for numbers too large for floats, 2, which is no power."""
    numbers = value.numerator, value.denominator
    return numbers if max(numbers) < 2**52 else (2, 2)
