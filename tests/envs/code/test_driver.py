"""The driver: values there and back, and what it says of a function, run as a program here."""

from __future__ import annotations

import enum
import json
import math
import os
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from arl_envs.code import driver
from arl_envs.code.driver import MAX_DEPTH, Built, Keyword, decode, encode
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.cases import cases

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
HASHED = st.booleans() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(HASHED, inner, max_size=4)
        | st.sets(st.integers() | st.text(), max_size=4)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_a_value_comes_back(value: Any) -> None:
    there = json.loads(json.dumps(encode(value)))
    assert repr_of(decode(there)) == repr_of(value)


@given(st.dictionaries(HASHED, st.integers(), max_size=6))
def test_a_dictionary_keeps_its_order(value: dict[Any, int]) -> None:
    for one in (value, dict(reversed(value.items()))):
        assert list(decode(json.loads(json.dumps(encode(one)))).items()) == list(one.items())


class Number(int):
    pass


class Kind(enum.IntEnum):
    ONE = 1


class Liar(list):  # type: ignore
    def __iter__(self) -> Any:
        return iter([5])

    def __eq__(self, other: object) -> bool:
        return True


Point = namedtuple("Point", "x y")
Counts, Order = Counter("aab"), OrderedDict(b=1, a=2)
KEPT = [b"1", bytearray(b"1"), 1j, complex(0, math.inf), range(1, 9, 2), math.inf, Counts, Order,
        deque([1, 2]), frozenset({1}), {frozenset({1})}, {(1, b"x"): deque()}, Decimal("1.50"),
        Fraction(1, 3), Keyword("key", [1])]  # fmt: skip
HELD = [(Number(1), 1), (Kind.ONE, 1), ([Number(1)], [1]), ({Kind.ONE: 1}, {1: 1}),
        (Point(1, 2), (1, 2)), (defaultdict(list, a=[1]), {"a": [1]}), (Liar([1]), [1]),
        ({1: 2}.keys(), {1}), (type("S", (str,), {})("a"), "a"),
        (type("O", (OrderedDict,), {})(Order), Order)]  # fmt: skip
OTHERS = [object(), iter([1]), iter, print, enum.Enum("E", "A"), [1].__iter__, {1: 2}.values()]


def test_what_python_calls_equal_comes_back() -> None:
    for value in KEPT:
        back = decode(json.loads(json.dumps(encode(value))))
        assert (type(back), back) == (type(value), value)
    for value, held in HELD:
        back = decode(json.loads(json.dumps(encode(value))))
        assert (type(back), back) == (type(held), held)
        if type(value) not in (list, dict):
            assert encode(value) == {"like": encode(held)}


@cases("value", OTHERS, ids=lambda value: type(value).__name__)
def test_what_is_no_value_has_no_code(value: Any) -> None:
    with pytest.raises(TypeError, match="is no plain value"):
        encode(value)


def test_values_may_be_deep_but_not_deeper() -> None:
    value: Any = 0
    for _ in range(MAX_DEPTH):
        value = [value]
    assert decode(encode(value)) == value
    with pytest.raises(ValueError, match="too deeply"):
        encode([value])


PRELUDE = "from math import *\nfrom collections import Counter"
SAYS = [
    ("def f(x): return x + 1", '{"value": 2}\n'),
    ("def f(x): print('no'); return [x]", '{"value": {"list": [1]}}\n'),
    ("class Solution:\n def f(self, x): return (x,)", '{"value": {"tuple": [1]}}\n'),
    ("f = lambda x: ceil(1.5)", '{"value": 2}\n'),
    ("def f(x): return object()", '{"unfit": "object is no plain value"}\n'),
    ("def f(x): return __import__('sys').stdin.read()", '{"value": ""}\n'),
    (
        "def f(x): import collections as c; return c.Counter('a')",
        '{"value": {"counter": [["a", 1]]}}\n',
    ),
    ("def f(x): raise SystemExit", ""),
    ("raise SystemExit", ""),
    ("def g(x): return 1", ""),
    ("def f(): return 1", ""),
]


@cases("source, record", SAYS)
def test_what_it_says_of_a_function(source: str, record: str) -> None:
    order = {"source": source, "prelude": PRELUDE, "entry": "f", "args": encode([1])}
    command = [sys.executable, "-I", "-S", os.path.abspath(driver.__file__)]
    done = subprocess.run(
        command, input=json.dumps(order).encode(), capture_output=True, timeout=60
    )
    assert done.stdout.decode() == record


ARGS = [
    ("def f(d): return list(d)", [{"b": 1, "a": 2}], ["b", "a"]),
    ("def f(d): return d.popitem()", [Counter(b=1, a=2)], ("a", 2)),
    ("def f(x, *, y): return (x, y)", [Keyword("y", 2), 1], (1, 2)),
    ("def f(x): return {x, frozenset()}", [frozenset({1})], {frozenset({1}), frozenset()}),
    ("def f(t): return t(3)", [Built("str", None, {})], "3"),
    ("def f(g): return g(3)", [Built("lambda x: x * x", None, {})], 9),
    ("class P:\n  def __init__(s, a, b): s.a, s.b = a, b\ndef f(x): return [p.a + p.b for p in x]",
     [[Built("P", [1, 2], {}), Built("P", [1, Keyword("b", 5)], {"a": 4})]], [3, 9]),
]  # fmt: skip


def test_arguments_arrive_as_they_are() -> None:
    for source, args, wanted in ARGS:
        order = {"source": source, "prelude": "", "entry": "f", "args": encode(args)}
        command = [sys.executable, "-I", "-S", os.path.abspath(driver.__file__)]
        said = json.dumps(order).encode()
        done = subprocess.run(command, input=said, capture_output=True, timeout=60)
        assert decode(json.loads(done.stdout)["value"]) == wanted, (source, done.stderr)


def repr_of(value: Any) -> str:
    """Which tells 1 from 1.0 and True, and a list from a tuple; of sets and dicts in one order."""
    if isinstance(value, dict):
        return f"{{{sorted((repr_of(k), repr_of(v)) for k, v in value.items())}}}"
    if isinstance(value, set):
        return f"set({sorted(map(repr_of, value))})"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({[repr_of(item) for item in value]})"
    return repr(value)
