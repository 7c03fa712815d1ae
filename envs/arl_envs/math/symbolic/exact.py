"""The exact comparison of the values of two expressions without variables.

Floats cannot distinguish 10^{-50} from 10^{-51}, nor 1 from 1 - 10^{-50}, for any fixed number of
digits. So every value is a ball: a midpoint, and a radius that always contains the true value. A
difference whose ball excludes zero is not zero. A ball that includes zero is computed with more
digits, until it is so small that a nonzero difference would have to be outside of it: a nonzero
algebraic number cannot be arbitrarily small. The bound follows from the numbers in the expression,
see Burnikel, Funke, Mehlhorn, Schirra, Schmitt: A Separation Bound for Real Algebraic Expressions,
2001 (doi:10.1007/3-540-44676-1_21), whose u and l are `up` and `down` here (as logarithms to base
2).

Logarithms, angles, pi and e have no such bound. The code treats them as if they had one, with
three times as many digits and 600 more: no answer of a thousand characters comes so close by
chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import comb, factorial, gcd, lcm, lgamma, log, log2
from typing import Any

from mpmath import mp, mpc, mpf

from .canonical import canonical
from .expression import Node, number, symbols

MAX_BITS = 40_000
"""The most bits of numbers in the computation; if more are needed, nothing is decided."""
_MORE_BITS = 2_000
_LARGEST_ARGUMENT = 10_000
"""The largest argument of a factorial or binomial."""
_ANY_BASE = Fraction(1_414_223, 1_000_003)
"""The base of a logarithm without one: it may be e or 10, so this number equals neither."""
_CIRCULAR = frozenset(("sin", "cos", "tan", "cot", "sec", "csc"))
_HYPERBOLIC = frozenset(("sinh", "cosh", "tanh"))


class Unknown(ValueError):
    """The error for an expression without a value, or with one that takes more than `MAX_BITS`."""


class _Wider(Exception):
    """The signal that more bits are needed for a decision."""


@dataclass(frozen=True, slots=True)
class _Ball:
    mid: Any
    """A real number (mpf), or a complex one (mpc)."""
    rad: Any
    up: float = 0.0
    down: float = 0.0

    @property
    def is_real(self) -> bool:
        return isinstance(self.mid, mpf)

    @property
    def least(self) -> Any:
        """Return the smallest absolute value in the ball."""
        return max(mpf(0), abs(self.mid) - self.rad)

    @property
    def most(self) -> Any:
        return abs(self.mid) + self.rad


def equal(one: Node, other: Node, place: Mapping[str, Fraction] | None = None) -> bool:
    """Return whether both have the same value, with the values of variables from `place`.

    Raises:
        Unknown: the equality cannot be decided.
    """
    if canonical(one) == canonical(other):
        return True
    difference = Node("sum", (one, Node("negative", (other,))))
    bits = 128
    while bits <= MAX_BITS:
        value = _Value(place or {})
        try:
            with mp.workprec(bits + 32):
                ball = value.of(difference)
                if ball.least > 0:
                    return False
                if ball.most < mpf(2) ** -value.bits(ball):
                    return True
        except _Wider:
            pass
        except (ArithmeticError, ValueError) as error:
            raise Unknown(str(error)) from error
        bits *= 2
    raise Unknown(f"not within {MAX_BITS} bits")


def agree(one: Node, other: Node) -> bool:
    """Return whether both have the same value at some points with positive variables.

    Some points are whole and some are not, as a factorial has no value in between. The result is
    False, too, if no value can be determined at all.
    """
    names = sorted(symbols(one) | symbols(other))
    decided = 0
    for start, step, below in ((7, 4, 5), (3, 2, 7), (11, 3, 1), (5, 4, 1)):
        place = {name: Fraction(start + step * at, below) for at, name in enumerate(names)}
        try:
            if not equal(one, other, place):
                return False
            decided += 1
        except Unknown:
            continue
    return decided > 0


class _Value:
    """An evaluator of expressions at one precision."""

    def __init__(self, place: Mapping[str, Fraction]) -> None:
        self._place = place
        self._exacts = dict[Node, Fraction | None]()
        self._roots = dict[Node, int]()
        """The largest possible degree of the number field, by irrational number."""
        self._is_proven = True

    def bits(self, ball: _Ball) -> float:
        """Return -log2 of a bound such that only zero is below it."""
        degree = 1
        for each in self._roots.values():
            degree *= each
        bits = ball.down + (degree - 1) * ball.up + 1
        bits = bits if self._is_proven else 3 * bits + _MORE_BITS
        if bits > MAX_BITS:
            raise Unknown(f"not within {MAX_BITS} bits")
        return bits

    def of(self, node: Node) -> _Ball:
        exact = self._exact(node)
        ball = self._rational(exact) if exact is not None else self._computed(node)
        if max(ball.up, ball.down) > MAX_BITS:
            raise Unknown("a number too long")
        return ball

    def _computed(self, node: Node) -> _Ball:
        match node.op, node.args:
            case "constant", ():
                return self._constant(node.name)
            case "sum", args:
                found = self._rational(Fraction(0))
                for ball in map(self.of, args):
                    found = self._sum(found, ball)
                return found
            case "negative", (inner,):
                ball = self.of(inner)
                return _Ball(-ball.mid, ball.rad, ball.up, ball.down)
            case "product", args:
                found = self._rational(Fraction(1))
                for ball in map(self.of, args):
                    found = self._product(found, ball)
                return found
            case "quotient", (above, below):
                return self._product(self.of(above), self._inverse(self.of(below)))
            case "power", (base, exponent):
                return self._power(node, base, exponent)
            case "root", (degree, radicand):
                order = self._exact(degree)
                if order is None or order.denominator != 1 or not 2 <= order <= 1000:
                    raise Unknown("a root of this degree")
                return self._root(node, self.of(radicand), int(order))
            case "abs", (inner,):
                return self._abs(self.of(inner))
            case "floor" | "ceiling", (inner,):
                return self._rounded(self.of(inner), node.op)
            case "call", args:
                return self._call(node, args)
        raise Unknown(f"no value: {node.op}")

    # Rational numbers are computed exactly, at any size up to MAX_BITS.

    def _exact(self, node: Node) -> Fraction | None:
        """Return the value of `node` if it consists of rational numbers alone."""
        if node not in self._exacts:
            self._exacts[node] = self._rationally(node)
        return self._exacts[node]

    def _rationally(self, node: Node) -> Fraction | None:
        if node.op == "number":
            return node.value
        if node.op == "symbol":
            return self._place[node.name]
        if node.op in ("constant", "root"):
            return None
        args = list[Fraction]()
        for arg in node.args:
            value = self._exact(arg)
            if value is None:
                return None
            args.append(value)
        found = _worked_out(node, args)
        if found is not None and _size(found) > MAX_BITS:
            raise Unknown("a number too long")
        return found

    def _rational(self, value: Fraction) -> _Ball:
        mid = mpf(value.numerator) / value.denominator
        is_exact = mid * value.denominator == value.numerator and _size(value) < mp.prec // 2
        up = log2(abs(value.numerator)) if value else 0.0
        return _Ball(mid, mpf(0) if is_exact else _ulp(mid), up, log2(value.denominator))

    def _constant(self, name: str) -> _Ball:
        if name == "i":
            self._roots[Node("constant", name="i")] = 2
            return _Ball(mpc(0, 1), mpf(0))
        if name not in ("pi", "e"):
            raise Unknown(f"no number: {name}")
        self._is_proven = False
        mid = +getattr(mp, name)
        return _Ball(mid, _ulp(mid), 2.0)

    def _sum(self, a: _Ball, b: _Ball) -> _Ball:
        mid, down = a.mid + b.mid, a.down + b.down
        above = max(a.up + b.down, b.up + a.down)
        return _Ball(mid, _more(a.rad + b.rad + _ulp(mid)), above + 1, down)

    def _product(self, a: _Ball, b: _Ball) -> _Ball:
        mid = a.mid * b.mid
        rad = abs(a.mid) * b.rad + abs(b.mid) * a.rad + a.rad * b.rad + _ulp(mid)
        return _Ball(mid, _more(rad), a.up + b.up, a.down + b.down)

    def _inverse(self, a: _Ball) -> _Ball:
        self._clear_of_zero(a)
        mid = 1 / a.mid
        return _Ball(mid, _more(a.rad / (abs(a.mid) * a.least) + _ulp(mid)), a.down, a.up)

    def _clear_of_zero(self, a: _Ball) -> None:
        if a.least == 0:
            if a.most < mpf(2) ** -self.bits(a):
                raise Unknown("a division by zero, or the logarithm of zero")
            raise _Wider

    def _power(self, node: Node, base: Node, exponent: Node) -> _Ball:
        fixed = self._exact(exponent)
        if fixed is None:
            return self._general_power(self.of(base), self.of(exponent))
        if max(abs(fixed.numerator), fixed.denominator) > MAX_BITS:
            raise Unknown("an exponent too large")
        ball = self.of(base)
        if fixed.denominator > 1:
            # For negative numbers this is the principal root, and the other one is no power.
            complex_base = _Ball(mpc(ball.mid), ball.rad, ball.up, ball.down)
            negative = ball.is_real and ball.mid < 0
            radicand = complex_base if negative else ball
            ball = self._root(Node("root", (number(fixed.denominator), base)), radicand,
                              fixed.denominator)  # fmt: skip
        times = abs(fixed.numerator)
        mid = ball.mid**times
        rad = ball.most**times - abs(ball.mid) ** times + _ulp(mid) * 8
        found = _Ball(mid, _more(rad), ball.up * times, ball.down * times)
        return self._inverse(found) if fixed < 0 else found

    def _general_power(self, base: _Ball, exponent: _Ball) -> _Ball:
        exponents = self._product(exponent, self._log(base))
        return self._function(mp.exp, exponents, grows=True)

    def _root(self, node: Node, a: _Ball, degree: int) -> _Ball:
        self._roots[canonical(node)] = degree
        if a.up >= a.down:
            up, down = (a.up + (degree - 1) * a.down) / degree, a.down
        else:
            up, down = a.up, ((degree - 1) * a.up + a.down) / degree
        if a.least == 0:
            if a.most < mpf(2) ** -self.bits(a):
                return self._rational(Fraction(0))
            raise _Wider  # a negative number has an imaginary root, a positive one a real root
        if a.is_real and a.mid < 0 and degree % 2:
            mid = -mp.root(-a.mid, degree)
        elif a.is_real and a.mid < 0 and degree == 2:
            self._roots[Node("constant", name="i")] = 2
            mid = mpc(0, mp.sqrt(-a.mid))
        else:
            self._keep_off_the_cut(a)
            mid = mp.root(a.mid, degree)
        rad = abs(mid) * a.rad / a.least + _ulp(mid) * 8
        return _Ball(mid, _more(rad), up, down)

    def _keep_off_the_cut(self, a: _Ball) -> None:
        """Request more bits if `a` may be on either side of the negative real axis."""
        if not a.is_real and a.mid.real < 0 and abs(a.mid.imag) <= a.rad and a.rad > 0:
            raise _Wider

    def _abs(self, a: _Ball) -> _Ball:
        if a.is_real:
            return _Ball(abs(a.mid), a.rad, a.up, a.down)
        self._is_proven = False
        return _Ball(abs(a.mid), _more(a.rad + _ulp(a.mid)), a.up + 1, a.down)

    def _rounded(self, a: _Ball, op: str) -> _Ball:
        if not a.is_real:
            raise Unknown("a complex number is not rounded")
        rounding = mp.floor if op == "floor" else mp.ceil
        low, high = int(rounding(a.mid - a.rad)), int(rounding(a.mid + a.rad))
        if low != high:
            near = int(mp.nint(a.mid))
            off = self._sum(a, self._rational(Fraction(-near)))
            if off.most >= mpf(2) ** -self.bits(off):
                raise _Wider
            low = near
        return self._rational(Fraction(low))

    def _log(self, a: _Ball) -> _Ball:
        self._clear_of_zero(a)
        self._keep_off_the_cut(a)
        return self._function(mp.log, a, slope=1 / a.least)

    def _function(self, function: Any, a: _Ball, *, slope: Any = 1, grows: bool = False) -> _Ball:
        """Return `function` of `a`: transcendental, with at most this slope or growing like e^a."""
        self._is_proven = False
        rad, whole = a.rad * slope, a.up + a.down
        if grows:
            if a.most > MAX_BITS:
                raise Unknown("a number too long")
            rad, whole = mp.exp(a.most) * mp.expm1(a.rad), whole + 3 * float(a.most)
        mid = function(a.mid)
        size = float(mp.log(abs(mid), 2)) if mid else 0.0
        return _Ball(mid, _more(rad + _ulp(mid) * 16), whole + max(size, 0), whole + max(-size, 0))

    def _call(self, node: Node, args: tuple[Node, ...]) -> _Ball:
        balls, name = list(map(self.of, args)), node.name
        if name in ("max", "min"):
            return self._extreme(balls, name)
        if name == "log" and len(balls) == 2:
            return self._product(self._log(balls[0]), self._inverse(self._log(balls[1])))
        if len(balls) != 1:
            raise Unknown(f"{name} of {len(balls)}")
        if name == "ln":
            return self._log(balls[0])
        if name == "log":
            base = self._log(self._rational(_ANY_BASE))
            return self._product(self._log(balls[0]), self._inverse(base))
        return self._known_call(name, balls[0])

    def _known_call(self, name: str, a: _Ball) -> _Ball:
        if name in ("arcsin", "arccos", "arctan"):
            if not a.is_real:
                raise Unknown(f"{name} of a complex number")
            slope = mpf(1) if name == "arctan" else self._slope_of_arcsine(a)
            return self._function(getattr(mp, name[0] + name[3:]), a, slope=slope)
        if name in ("tan", "cot", "sec", "csc", "tanh"):
            parts = _QUOTIENTS[name]
            above, below = (self._known_call(p, a) if p else self._rational(Fraction(1))
                            for p in parts)  # fmt: skip
            return self._product(above, self._inverse(below))
        if name not in _CIRCULAR | _HYPERBOLIC:
            raise Unknown(f"no value: {name}")
        return self._function(getattr(mp, name), a, grows=name in _HYPERBOLIC or not a.is_real)

    def _slope_of_arcsine(self, a: _Ball) -> Any:
        if a.rad == 0 and abs(a.mid) == 1:
            return mpf(0)
        if abs(a.mid) > 1:
            raise Unknown("no angle has such a sine")
        if a.most >= 1:
            raise _Wider
        return 1 / mp.sqrt(1 - a.most**2)

    def _extreme(self, balls: list[_Ball], name: str) -> _Ball:
        if not all(ball.is_real for ball in balls):
            raise Unknown(f"{name} of complex numbers")
        best = (max if name == "max" else min)(balls, key=lambda ball: ball.mid)
        if any(abs(best.mid - ball.mid) <= best.rad + ball.rad for ball in balls if ball != best):
            raise _Wider
        return best


_QUOTIENTS = {
    "tan": ("sin", "cos"), "cot": ("cos", "sin"), "sec": ("", "cos"), "csc": ("", "sin"),
    "tanh": ("sinh", "cosh"),
}  # fmt: skip


def _worked_out(node: Node, args: list[Fraction]) -> Fraction | None:
    """Return the result of `node` on rational `args`; None if irrational or not known here."""
    match node.op, args:
        case "sum", _:
            return sum(args, Fraction(0))
        case "negative", [a]:
            return -a
        case "product", _:
            if sum(map(_size, args)) > MAX_BITS:
                raise Unknown("a number too long")
            product = Fraction(1)
            for arg in args:
                product *= arg
            return product
        case "quotient", [a, b]:
            return a / b
        case "power", [a, b] if b.denominator == 1:
            if abs(b) * max(_size(a), 1) > MAX_BITS:
                raise Unknown("a number too long")
            return a ** int(b)
        case "abs", [a]:
            return abs(a)
        case "floor", [a]:
            return Fraction(a.__floor__())
        case "ceiling", [a]:
            return Fraction(a.__ceil__())
        case "factorial" | "binomial", _:
            return Fraction(_counted(node.op, args))
        case "call", _ if node.name in ("max", "min"):
            return max(args) if node.name == "max" else min(args)
        case "call", _ if node.name in ("gcd", "lcm"):
            if any(arg.denominator != 1 for arg in args):
                raise Unknown(f"{node.name} of fractions")
            return Fraction((gcd if node.name == "gcd" else lcm)(*map(int, args)))
    return None


def _counted(op: str, args: list[Fraction]) -> int:
    if any(arg.denominator != 1 or not 0 <= arg <= _LARGEST_ARGUMENT for arg in args):
        raise Unknown(f"{op} of such numbers")
    if lgamma(int(args[0]) + 1) > MAX_BITS * log(2):
        raise Unknown("a number too long")
    return factorial(int(args[0])) if op == "factorial" else comb(*map(int, args))


def _size(value: Fraction) -> int:
    """Return the bits of the longer one of numerator and denominator, minus one."""
    return max(abs(value.numerator).bit_length(), value.denominator.bit_length()) - 1


def _ulp(mid: Any) -> Any:
    """Return the rounding error of a newly computed number; 0 for zero."""
    return abs(mid) * mpf(2) ** (2 - mp.prec)


def _more(rad: Any) -> Any:
    """Return the radius rounded up."""
    return rad * (1 + mpf(2) ** -20)
