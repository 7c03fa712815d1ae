"""What is the same text, or the same value; never an exception, whatever is said."""

from __future__ import annotations

import enum
import json
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
from typing import Any

from arl_envs.code.compare import same_text, same_value
from arl_envs.code.driver import ALL, encode
from arl_envs.code.problem import EXACT, Tolerance
from arl_envs.code.rows.cases import PRINTED
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.cases import cases

Point = namedtuple("Point", "x y")
ATOMS = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2)
ATOMS |= st.sampled_from([0.0, -0.0, 1.0, 2.5, 2**53, 2.0**53, 2**53 + 1, 10**400, math.inf])
KEYS = st.text("ab", max_size=2) | st.integers(-3, 3)
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.sets(st.integers(-3, 3), max_size=3)
        | st.sets(st.text("ab", max_size=2), max_size=3)
    ),
    max_leaves=8,
)
RECORDS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["value", *sorted(ALL), "built", "x"]), inner, max_size=2)
    ),
    max_leaves=10,
)
TEXTS = st.text("01.e- \n\t\r", max_size=12)
TOLERANCES = st.sampled_from([EXACT, PRINTED, Tolerance(1e308, 1.0)])


def said(value: Any) -> bytes:
    """What the driver would write."""
    return json.dumps({"value": encode(value)}).encode() + b"\n"


@given(VALUES, VALUES)
def test_values_are_the_same_as_plain_python_has_it(expected: Any, got: Any) -> None:
    assert same_value(expected, said(expected))
    assert same_value(expected, said(got)) == equal(expected, got)


@given(VALUES, st.binary(max_size=60), TOLERANCES)
def test_no_bytes_are_an_exception(expected: Any, got: bytes, tolerance: Tolerance) -> None:
    assert same_value(expected, got, tolerance=tolerance) in (True, False)
    assert same_value(expected, b'{"value":' + got + b"}", tolerance=tolerance) in (True, False)
    assert same_text(str(expected), got, tolerance=tolerance) in (True, False)


@given(VALUES, RECORDS, TOLERANCES)
def test_no_record_is_an_exception(expected: Any, record: Any, tolerance: Tolerance) -> None:
    for whole in (record, {"value": record}):
        line = json.dumps(whole).encode()
        for python in (False, True):
            same = same_value(expected, line, tolerance=tolerance, python=python)
            assert same in (True, False)


@given(TEXTS, TEXTS)
def test_texts_are_the_same_as_plain_python_has_it(expected: str, got: str) -> None:
    assert same_text(expected, got.encode()) == (lines(expected) == lines(got))
    assert same_text(expected, expected.encode(), tolerance=PRINTED)


@cases(
    "expected, got, same",
    [
        ("1.5 x\n", b"1.5000001 x", True),
        ("1.5 x\n", b"1.6 x", False),
        ("1.5 x\n", b"1.5000001 y", False),
        ("1.5\n", b"15e-1", True),
        ("1.0\n", b"1", True),
        ("1\n", b"1.0000001", False),
        ("1.5\n", b"nan", False),
        ("1.0e999\n", b"1.5", False),
        ("1.5\n", b"inf", False),
        ("1.5\n", b"1_5e-1", False),
        ("1.5\n", b"0x1.8p0", False),
        ("1.5\n", "١.٥".encode(), False),
        ("1.5\n", b"1.5 1.5", False),
        ("1.5\n", b"1.5\n1.5", False),
        ("1.5\n", b"1" + b"0" * 400 + b".5", False),
    ],
)
def test_decimal_numbers_within_a_tolerance(expected: str, got: bytes, same: bool) -> None:
    assert same_text(expected, got, tolerance=PRINTED) == same


@cases(
    "expected, got, same",
    [
        (1.5, 1.5000001, True),
        (1.5, 1.6, False),
        ([1.5, 2], [1.5000001, 2], True),
        (2, 2.0000001, False),
        (1.0, 1, True),
        (1.5, math.nan, False),
        (1e300, 10**400, False),
        (1.0, True, False),
        (1.0, "1.0", False),
        ({1.5: 2.5}, {1.5: 2.5000001}, True),
        ({1.5: 2.5}, {1.5000001: 2.5}, False),
    ],
)
def test_floats_within_a_tolerance(expected: Any, got: Any, same: bool) -> None:
    assert same_value(expected, said(got), tolerance=PRINTED) == same


@cases(
    "tolerance, wanted, got, same",
    [
        (Tolerance(relative=0.5), 2.0, 3.0, True),
        (Tolerance(relative=0.5), 2.0, 3.5, False),  # of what is wanted, not of what came out
        (Tolerance(relative=0.5), 0.0, 1e-300, False),
        (Tolerance(absolute=1.0), 0.5, 1.5, True),
        (Tolerance(absolute=1.0), 0.5, 1e300, False),
        (Tolerance(0.5, 0.1), 0.1, 0.19, True),
        (Tolerance(1e308), 1e300, math.inf, False),
        (Tolerance(1e308), 1e308, -1e308, False),
    ],
)
def test_each_bound_of_a_tolerance(
    tolerance: Tolerance, wanted: float, got: float, same: bool
) -> None:
    assert same_value(wanted, said(got), tolerance=tolerance) == same


LONG = "1" * 5000


@cases(
    "expected, got, same",
    [
        ("0.000000001", "0.0", False),  # 0 is never right for another number, nor is its opposite
        ("0.000000001", "-0.000000001", False),
        ("0.0000001", "-0.0000001", False),
        ("0.0000001", "0", False),
        ("1e-07", "-1e-07", False),
        ("1e-09", "0.000000001", True),
        ("1e-09", "1.0000001E-9", True),
        ("1e-09", "0", False),
        ("1e+16", "10000000000000000", True),
        ("0.000012", "0.0000123456", True),  # as printed with six digits
        ("0.000012", "0.000013", False),
        ("0.00001234567", "0.0000124", False),
        ("0.0123456789", "0.012346", True),
        ("-0.5", "0.5", False),
        ("-0.0", "0.0", True),
        ("0.0", "1.2e-16", True),
        ("0", "-0", False),
        ("1.0e-9999", "0", False),
        ("1.0e9999", "1.0000001e9999", True),
        ("1.0e9999", "2e9999", False),
        ("nan", "nan", True),
        ("nan", "0.0", False),
        ("inf", "1e9999", False),
        (f"{LONG}.0", LONG, True),
        (f"{LONG}.0", LONG[1:], False),
        (f"0.{'3' * 60}", "0.3333333333333333", True),
        ("3", "3.0", False),
        ("3", "3.0000000001", False),
        (LONG, f"{LONG[1:]}2", False),
        ("[0.1, 0.3]", "[0.1, 0.30000000000000004]", True),
        ("x=0.5;", "x=0.50000000001;", True),
        ("x=0.5;", "y=0.5;", False),
        ("3:1.5", "4:1.5", False),
        ("12.5%", "12.500000001%", True),
        ("1.2.3", "1.2.3000000001", False),
        ("v1.5", "v1.5000000001", False),
        ("a1.5e3", "a1.5000000001e3", False),
        ("So 3.", "So 3.0000000001", False),
    ],
)
def test_printed_numbers(expected: str, got: str, same: bool) -> None:
    assert same_text(expected, got.encode(), tolerance=PRINTED) == same


@given(st.floats(-1, 1).filter(bool), st.sampled_from(["{:.9f}", "{:.17g}", "{:.3e}", "{!r}"]))
def test_neither_0_nor_the_opposite_of_a_printed_number_is_right(size: float, form: str) -> None:
    printed = form.format(size)
    if float(printed) and not printed.lstrip("-").isdigit():
        for wrong in ("0", "0.0", "-0.0", form.format(-size)):
            assert not same_text(printed, wrong.encode(), tolerance=PRINTED)


@cases(
    "value",
    [2**20_000, -(2**20_000), [{2**15_000: 1}], range(2**15_000), Fraction(2**15_000, 3)],
    ids=range(5),
)
def test_numbers_of_more_digits_than_python_writes(value: Any) -> None:
    assert same_value(value, said(value), python=True)
    assert not same_value(1, said(value), python=True)


IN_PYTHON = [
    (1, True), (False, 0), ([True, 0], [1, False]), ({"a": 1}, Counter("a")),
    ({"a": 1}, {"a": True}),
    ({"a": [1]}, defaultdict(list, a=[1])), ({"a": 1, "b": 2}, OrderedDict(b=2, a=1)),
    (Counter("ab"), {"b": 1, "a": 1}), (Counter(a=1), Counter(a=1, b=0)), ((1, 2), Point(1, 2)),
    ([(1, 2)], [Point(1, 2)]), (1, enum.IntEnum("E", "A").A), ("a", enum.StrEnum("S", "a").a),
    (deque([1, 2]), deque([1, 2], 5)), ({1}, {1: 2}.keys()), (1, 1 + 0j), (2.5, Decimal("2.5")),
    (0.5, Fraction(1, 2)), (b"a", bytearray(b"a")), (range(3), range(3)),
    ([1.5], [1.5000001]), (1 + 2.5j, 1.0000001 + 2.5j), (deque([1.5]), deque([1.5000001])),
    (0.1, Fraction(1, 10)), (OrderedDict(a=1.5), OrderedDict(a=1.5000001)),
]  # fmt: skip
NOT_IN_PYTHON = [
    (1, "1"), ([1, 2], deque([1, 2])), (deque([1]), [1]), ((1, 2), [1, 2]), ([0, 1, 2], range(3)),
    ("a", b"a"), ({1}, [1]), ({"a": 1}, [("a", 1)]), (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
    (None, 0), (0, None), ("", None), ([], {}), (1.5, 1.6j), (math.inf, 1e308), (1.5, math.nan),
    (1, 1.0000001), (True, 1.0000001), ({"a": 1}, {"a": 1, "b": 0}),
    ({"a": 1}, Counter(a=1, b=0)), (deque([1, 2]), deque([2, 1])),
]  # fmt: skip


def test_with_python_what_is_equal_there_is_the_same() -> None:
    def same(wanted: Any, got: Any, *, python: bool = True) -> bool:
        return same_value(wanted, said(got), tolerance=PRINTED, python=python)

    assert not [pair for pair in IN_PYTHON if not same(*pair)]
    assert not [pair for pair in NOT_IN_PYTHON if same(*pair)]
    plain = [pair for pair in IN_PYTHON[:20] if type(pair[0]) is not Counter]
    assert not [pair for pair in plain if same(*pair, python=False)]


class Yes(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def test_an_equality_of_its_own_decides_nothing() -> None:
    for wanted in (5, [5], "5", {}, None, 5.0):
        for value in (Yes(7), [Yes(7)], {Yes(7): Yes(7)}):
            assert not same_value(wanted, said(value), tolerance=PRINTED, python=True)
    assert same_value(7, said(Yes(7)), python=True)


HOSTILE = [
    b'{"value": {"like": {"like": {"like": []}}}}',
    b'{"value": {"fraction": [1, 0]}}',
    b'{"value": {"fraction": ["1e999999999", 1]}}',
    b'{"value": {"decimal": "sNaN"}}',
    b'{"value": {"decimal": "1e999999999999"}}',
    b'{"value": {"complex": ["nan"]}}',
    b'{"value": {"range": [0, 1, 0]}}',
    b'{"value": {"dict": [[{"list": []}, 1]]}}',
    b'{"value": {"built": ["5", null, {}]}}',
    b'{"value": {"keyword": ["5", 5]}}',
    b'{"value": {"any": null}}',
    json.dumps({"value": {"set": [n * (2**61 - 1) for n in range(50_000)]}}).encode(),
    b"",
    b"\n",
    b"5",
    b"{}",
    b'{"value": ' + b"[" * 100_000,
    b'{"value": ' * 10_000,
    b'{"value": ' + b"9" * 100_000 + b"}",
    b'{"value": 1e' + b"9" * 100_000 + b"}",
    b'{"value": {"list": [{}]}}',
    b'{"value": {"list": {"list": []}}}',
    b'{"value": 5}\n{"value": 5}\n',
    b"\xff\xfe" * 1000,
    b"\0" * 1000,
    b'{"value": "\\ud800"}',
]


@cases("line", HOSTILE, ids=range(len(HOSTILE)))
@cases("expected", [5, [5], "5", {}, None, 5.0, [[]]], ids=repr)
def test_a_hostile_line_is_never_right(expected: Any, line: bytes) -> None:
    for python in (False, True):
        assert not same_value(expected, line, tolerance=PRINTED, python=python)


def equal(one: Any, other: Any) -> bool:
    """As `==`, but that True is not 1, and that a tuple may stand for a list (not the reverse)."""
    if isinstance(one, dict | set):
        return type(one) is type(other) and as_pairs(one, other)
    if isinstance(one, list | tuple):
        fits = type(other) is type(one) or (isinstance(one, list) and isinstance(other, tuple))
        return fits and len(one) == len(other) and all(map(equal, one, other))
    if one is None or isinstance(one, bool | str) or isinstance(other, bool):
        return type(one) is type(other) and one == other
    return isinstance(other, int | float) and one == other


def as_pairs(one: Any, other: Any) -> bool:
    if len(one) != len(other):
        return False
    if isinstance(one, set):
        return one == other
    return all(key in other and equal(one[key], other[key]) for key in one)


def lines(text: str) -> list[str]:
    found = [line.rstrip(" \t\r") for line in text.split("\n")]
    while found and not found[-1]:
        found.pop()
    return found
