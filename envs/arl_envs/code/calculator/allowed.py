"""The calls that the calculator allows: functions and methods of Python that only compute.

Each gets values of built-in types. A call that would take much time or memory is refused before
it begins. Iterators are lists here, of bounded length.
"""

from __future__ import annotations

import builtins
import cmath
import collections
import copy
import decimal
import fractions
import functools
import itertools
import math
import random
import string
import sys
from collections.abc import Callable, Iterable
from typing import Any

MAX_ITEMS = 1_000_000
MAX_BITS = 20_000
"""The most bits of a whole number."""


class NotComputable(ValueError):
    """The error for code that is not computed, with the reason."""


def items(value: Any) -> list[Any]:
    """Return the items of `value`, all at once.

    Raises:
        NotComputable: `value` has no items, or too many.
    """
    if not isinstance(value, Iterable):
        raise NotComputable(f"{type(value).__name__} has no items")
    found = list(itertools.islice(value, MAX_ITEMS + 1))
    if len(found) > MAX_ITEMS:
        raise NotComputable(f"more than {MAX_ITEMS} items")
    return found


def fair(value: Any) -> list[Any]:
    """Return `items` for use as keys, of which only a few may have one hash."""
    found = items(value)
    if len(found) > 1000 and max(collections.Counter(map(hash, found)).values()) > 100:
        raise NotComputable("keys that are made to have one hash")
    return found


def small(number: Any, most: int = MAX_ITEMS) -> Any:
    if isinstance(number, int) and abs(number) > most:
        raise NotComputable(f"a number above {most}")
    return number


def power(base: Any, exponent: Any, modulus: Any = None) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and modulus is None:
        if base.bit_length() * abs(exponent) > MAX_BITS:
            raise NotComputable("a power that is too large")
    elif not isinstance(base, int | float | complex) or not isinstance(
        exponent, int | float | complex
    ):
        raise NotComputable("a power of no plain numbers")
    return pow(base, exponent, modulus)


def times(left: Any, right: Any) -> Any:
    for sequence, count in ((left, right), (right, left)):
        if isinstance(count, int) and hasattr(sequence, "__len__"):
            small(len(sequence) * max(count, 0))
        elif isinstance(sequence, int) and isinstance(count, int):
            small(sequence.bit_length() + count.bit_length(), 2 * MAX_BITS)
    return left * right


def plus(left: Any, right: Any) -> Any:
    if hasattr(left, "__len__") and hasattr(right, "__len__"):
        small(len(left) + len(right))
    return left + right


def written(value: Any, spec: str = "") -> str:
    """Return the result of `format`, for small widths."""
    if any(len(digits) > 4 for digits in "".join(c if c.isdigit() else " " for c in spec).split()):
        raise NotComputable(f"a width in {spec!r}")
    return format(value, spec)


def percent(left: Any, right: Any) -> Any:
    if isinstance(left, str | bytes):
        raise NotComputable("text with %")
    return left % right


def shifted(left: int, right: int) -> int:
    return left << small(right, MAX_BITS)


def _range(*args: int) -> range:
    found = range(*args)
    if found and (found[-1] - found[0]) // found.step >= MAX_ITEMS:
        raise NotComputable(f"a range of more than {MAX_ITEMS} numbers")
    return found


def _bounded(function: Callable[..., Any], most: int) -> Callable[..., Any]:
    return lambda *args: function(*(small(arg, most) for arg in args))


def _listed(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **named: items(function(*args, **named))


def _deep(value: Any) -> Any:
    return copy.deepcopy(value)


def _sum(values: Any, start: Any = 0) -> Any:
    return functools.reduce(plus, items(values), start)


def _of_keys(kind: type) -> Callable[..., Any]:
    return lambda *args: kind(*map(fair, args))


def _mapping(kind: Any) -> Callable[..., Any]:
    return lambda *args, **named: kind(*map(_pairs, args), **named)


def _pairs(value: Any) -> Any:
    if isinstance(value, dict):
        return value
    pairs = [tuple(items(pair)) for pair in items(value)]
    fair(pair[0] for pair in pairs if pair)
    return pairs


def _text(*args: Any) -> str:
    """Return the result of `str`, also for numbers of more than 4300 digits."""
    if len(args) == 1 and type(args[0]) is int:
        return f"{decimal.Decimal(small(args[0], 1 << 8 * MAX_BITS))}"
    return str(*args)


def _counter(*args: Any, **named: Any) -> collections.Counter[Any]:
    return collections.Counter(*(a if isinstance(a, dict) else fair(a) for a in args), **named)


_COMPUTES = """
    abs all any ascii bin bool chr complex divmod float hex isinstance len max min oct ord repr
    round slice sorted int
"""
BUILTINS: dict[str, Any] = {name: getattr(builtins, name) for name in _COMPUTES.split()} | {
    "bytes": _bounded(bytes, MAX_ITEMS),
    "bytearray": _bounded(bytearray, MAX_ITEMS),
    "dict": _mapping(dict),
    "enumerate": _listed(enumerate),
    "filter": _listed(filter),
    "format": written,
    "frozenset": _of_keys(frozenset),
    "iter": items,
    "list": lambda *args: items(*args) if args else [],
    "map": _listed(map),
    "pow": power,
    "print": lambda *args, **named: None,
    "range": _range,
    "reversed": _listed(reversed),
    "set": _of_keys(set),
    "str": lambda *args: _text(*args),
    "sum": _sum,
    "tuple": lambda *args: tuple(items(*args)) if args else (),
    "type": lambda value: type(value),
    "zip": _listed(zip),
    "inf": math.inf,
    "Counter": _counter,
    "OrderedDict": _mapping(collections.OrderedDict),
    "deque": lambda values=(), maxlen=None: collections.deque(items(values), maxlen),
    "Decimal": lambda value=0: decimal.Decimal(value),
    "Fraction": lambda *args: fractions.Fraction(*(small(a, 1 << MAX_BITS) for a in args)),
}  # fmt: skip
TYPES = {"int": int, "float": float, "str": str, "bool": bool, "list": list, "tuple": tuple,
         "dict": dict, "set": set, "frozenset": frozenset, "complex": complex, "bytes": bytes,
         "object": object, "type": type}  # fmt: skip
"""The builtins that may be values themselves, as in `isinstance(x, int)`."""


def _public(module: Any, *without: str) -> dict[str, Any]:
    names = [n for n in dir(module) if not n.startswith("_") and n not in without]
    return {name: getattr(module, name) for name in names}


def _random(seed: Any = 0) -> random.Random:
    """Return a generator with a fixed default seed, so that a row is the same task each time."""
    return random.Random(seed)


_SHARED = {"choice", "choices", "gauss", "getrandbits", "randint", "random", "randrange", "sample",
           "shuffle", "uniform"}  # fmt: skip


def modules() -> dict[str, dict[str, Any]]:
    """Return the importable modules by name, each with its content."""
    rng = _random()
    return {
        "math": _public(math, "factorial", "comb", "perm", "pow") | {
            "factorial": _bounded(math.factorial, 2000),
            "comb": _bounded(math.comb, 2000),
            "perm": _bounded(math.perm, 1000),
            "pow": math.pow,
        },
        "cmath": _public(cmath),
        "string": {n: v for n, v in _public(string).items() if isinstance(v, str)},
        "copy": {"copy": copy.copy, "deepcopy": _deep},
        "random": {"Random": _random, "seed": rng.seed} | {n: getattr(rng, n) for n in _SHARED},
        "sys": {"maxsize": sys.maxsize},
        "collections": {
            "Counter": BUILTINS["Counter"], "OrderedDict": BUILTINS["OrderedDict"],
            "deque": BUILTINS["deque"],
            "defaultdict": lambda kind=None, *args: collections.defaultdict(kind, *args),
        },
        "itertools": {
            name: _listed(getattr(itertools, name))
            for name in ("accumulate", "chain", "combinations", "permutations", "product",
                         "pairwise", "zip_longest", "islice")
        },
        "functools": {"reduce": lambda f, xs, *start: functools.reduce(f, items(xs), *start)},
        "decimal": {"Decimal": BUILTINS["Decimal"]},
        "fractions": {"Fraction": BUILTINS["Fraction"]},
        "typing": {}, "collections.abc": {}, "__future__": {}, "pytest": {}, "numpy": {},
    }  # fmt: skip


_METHODS: dict[type, str] = {
    str: "capitalize casefold count endswith find index isalnum isalpha isdecimal isdigit islower "
         "isnumeric isspace istitle isupper isidentifier lower lstrip partition removeprefix "
         "removesuffix rfind rindex rpartition rsplit rstrip split splitlines startswith strip "
         "swapcase title upper encode join replace zfill ljust rjust center",
    bytes: "count decode endswith find hex index split startswith",
    list: "append clear copy count extend index insert pop remove reverse sort",
    tuple: "count index",
    dict: "clear copy get items keys pop popitem setdefault update values most_common elements",
    set: "add clear copy difference discard intersection isdisjoint issubset issuperset pop remove "
         "symmetric_difference union update",
    frozenset: "copy difference intersection isdisjoint issubset issuperset union",
    collections.deque: "append appendleft clear copy count extend extendleft index pop popleft "
                       "remove reverse rotate",
    int: "bit_count bit_length conjugate as_integer_ratio real imag numerator denominator",
    float: "is_integer conjugate as_integer_ratio real imag",
    complex: "conjugate real imag",
    fractions.Fraction: "numerator denominator",
    random.Random: " ".join(_SHARED),
}  # fmt: skip
_WIDTHS = ("zfill", "ljust", "rjust", "center")


def attribute(value: Any, name: str) -> Any:
    """Return `value.name`, a method that only computes or changes `value`.

    Raises:
        NotComputable: the attribute is anything else.
    """
    for kind, names in _METHODS.items():
        if isinstance(value, kind) and name in names.split() and hasattr(value, name):
            method = getattr(value, name)
            if name in _WIDTHS:
                return lambda width, *fill: method(small(width), *fill)
            if name in ("extend", "extendleft"):
                return lambda more: method(small(len(value) + len(items(more))) and items(more))
            if name == "join":
                return lambda parts: method(_joinable(value, items(parts)))
            if name == "replace":
                return lambda old, new, *count: _replaced(value, old, new, *count)
            return method
    raise NotComputable(f"{type(value).__name__}.{name}")


def _joinable(separator: str, parts: list[Any]) -> list[Any]:
    small(sum(map(len, parts)) + len(separator) * len(parts))
    return parts


def _replaced(text: str, old: str, new: str, *count: int) -> str:
    small(len(text) + (text.count(old) + 1) * len(new))
    return text.replace(old, new, *count)
