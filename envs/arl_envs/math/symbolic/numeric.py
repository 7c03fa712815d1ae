"""The value of an expression in floats: enough to decide that two expressions are different."""

from __future__ import annotations

import cmath
import hashlib
import math
from collections.abc import Callable, Mapping

from .expression import Node, symbols

_LARGEST_FACTORIAL = 150
_POINTS = 3
_NEAR, _HUGE = 1e-9, 1e300


def differ(one: Node, other: Node) -> bool:
    """Return whether both surely have different values at some point with positive variables.

    False decides nothing: they may be equal, or not be computable here.
    """
    names = sorted(symbols(one) | symbols(other))
    for point in range(_POINTS):
        place = {name: _coordinate(name, point) for name in names}
        a, b = _value(one, place), _value(other, place)
        if a is None or b is None:
            continue
        if cmath.isinf(a) != cmath.isinf(b):
            return True
        scale = max(abs(a), abs(b))
        if cmath.isfinite(a) and abs(a - b) > 1e-6 * scale and scale > 1e-9:
            return True
    return False


Trace = tuple[complex | None, ...]
"""The values of an expression at some points; None: the value is not known."""


def trace(node: Node) -> Trace:
    """Return the values of `node` at points that depend only on the names of the variables."""
    names = sorted(symbols(node))
    found = [_value(node, {name: _coordinate(name, at) for name in names}) for at in range(_POINTS)]
    return tuple(None if value is None or abs(value) > _HUGE else value for value in found)


def agree(one: Trace, other: Trace) -> bool:
    """Return whether the values are the same where both are known, at one point at least."""
    known = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    return bool(known) and all(_close(a, b) for a, b in known)


def proportional(one: Trace, other: Trace) -> bool:
    """Return whether the values of one are those of the other times a number, where known."""
    pairs = zip(one, other, strict=True)
    ratios = [a / b for a, b in pairs if a is not None and b]
    return len(ratios) > 1 and all(_close(ratio, ratios[0]) for ratio in ratios)


def _close(a: complex, b: complex) -> bool:
    scale = max(abs(a), abs(b))
    return scale > 0 and abs(a - b) <= _NEAR * scale


def _value(node: Node, place: Mapping[str, float]) -> complex | None:
    """Return the value: infinite if intermediate numbers overflow floats, None if unknown."""
    try:
        value = evaluate(node, place)
        abs(value)  # the absolute value may overflow although both parts are floats
    except OverflowError:
        return complex(math.inf)
    except (ArithmeticError, ValueError):
        return None
    return None if cmath.isnan(value) else value


def _coordinate(name: str, point: int) -> float:
    """Return a number from 0.3 to 2.3, the same in every process."""
    digest = hashlib.blake2b(f"{name}/{point}".encode(), digest_size=4).digest()
    return 0.3 + 2 * int.from_bytes(digest, "big") / 2**32


def evaluate(node: Node, place: Mapping[str, float]) -> complex:
    """Return the value of `node` with the values of variables from `place`.

    Raises:
        ArithmeticError, ValueError: `node` has no value there, or none that floats can hold.
    """
    args = [evaluate(arg, place) for arg in node.args]
    match node.op:
        case "number":
            assert node.value is not None
            return complex(float(node.value))
        case "symbol":
            return complex(place[node.name])
        case "constant":
            return {"pi": math.pi, "e": math.e, "i": 1j, "infty": math.inf}[node.name]
        case "sum":
            return _total(args)
        case "negative":
            return -args[0]
        case "product":
            return math.prod(args)
        case "quotient":
            return args[0] / args[1]
        case "power":
            return args[0] ** args[1]
        case "root":
            return _root(args[1], args[0])
        case "call":
            return _call(node.name, args)
        case _:
            return _real(node.op, args)


def _total(args: list[complex]) -> complex:
    total, largest = sum(args), max(map(abs, args))
    if abs(total) < 1e-6 * largest and not all(_is_counted(arg) for arg in args):
        raise ValueError("all digits that floats have cancel")
    return total


def _is_counted(arg: complex) -> bool:
    """Return whether `arg` is a whole number that floats hold exactly."""
    return arg.imag == 0 and abs(arg.real) < 2**52 and arg.real.is_integer()


def _root(radicand: complex, degree: complex) -> complex:
    if radicand.imag == 0 and radicand.real < 0 and degree.imag == 0 and degree.real % 2 == 1:
        raise ValueError("the real root or the principal one: nobody knows")
    return radicand ** (1 / degree)


_CALLS: Mapping[str, Callable[[complex], complex]] = {
    "sin": cmath.sin, "cos": cmath.cos, "tan": cmath.tan, "ln": cmath.log,
    "cot": lambda z: 1 / cmath.tan(z), "sec": lambda z: 1 / cmath.cos(z),
    "csc": lambda z: 1 / cmath.sin(z), "arcsin": cmath.asin, "arccos": cmath.acos,
    "arctan": cmath.atan, "sinh": cmath.sinh, "cosh": cmath.cosh, "tanh": cmath.tanh,
}  # fmt: skip


def _call(name: str, args: list[complex]) -> complex:
    if name == "log" and len(args) == 2:
        return cmath.log(args[0]) / cmath.log(args[1])
    if name not in _CALLS or len(args) != 1:  # log without a base: it may be e or 10
        raise ValueError(f"{name} of {len(args)}")
    return _CALLS[name](args[0])


def _real(op: str, args: list[complex]) -> complex:
    if op == "abs":
        return complex(abs(args[0]))
    if any(arg.imag for arg in args):
        raise ValueError(f"{op} of a complex number")
    values = [arg.real for arg in args]
    if op in ("floor", "ceiling"):
        return complex((math.floor if op == "floor" else math.ceil)(values[0]))
    if any(value != int(value) or not 0 <= value <= _LARGEST_FACTORIAL for value in values):
        raise ValueError(f"{op} of {values}")
    if op == "factorial":
        return complex(math.factorial(int(values[0])))
    return complex(math.comb(int(values[0]), int(values[1])))
