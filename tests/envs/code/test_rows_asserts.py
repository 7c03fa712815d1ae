"""Assertions are split without being executed; what cannot be split is refused."""

import json
import math
from collections import Counter, deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from arl_envs.code.compare import same_value
from arl_envs.code.driver import Built, Keyword, encode
from arl_envs.code.grader import passes as accepts
from arl_envs.code.problem import CallTest, Problem, Tolerance
from arl_envs.code.rows.assertions import split_tests
from arl_envs.code.rows.cases import ROUNDING

from agentgym_rl.gym.data import RowRefused
from tests.kit.cases import cases

from .rows_kit import passes, problem

PROMPT = '''from typing import List


def half(n: int) -> int:
    """Half of `n`, rounded down."""
    return n // 2


def halves(items: List[int]) -> List[int]:
    """The half of every item, as `half` gives it.
    >>> halves([4, 7])
    [2, 3]
    """
'''
CHECK = """
METADATA = {"author": "me"}


def check(candidate):
    assert candidate([4, 7]) == [2, 3]
    assert candidate([9, 1]) == [4, 0]
    assert candidate([]) == [], "empty"
    assert True, "never fails"
"""
PLUS = """
import numpy as np

def assertion(out, exp, atol):
    if atol == 0:
        atol = 1e-6
    assert np.allclose(out, exp, atol=atol)

def check(candidate):
    inputs = [[[4, 7]], [[-1]], [[]]]
    results = [[2, 3], [-1], []]
    for i, (inp, exp) in enumerate(zip(inputs, results)):
        assertion(candidate(*inp), exp, 0)
"""
PYTEST = """
import pytest
from solution import area


def test_whole():
    width = 3
    result = area(width, 4)
    width = 5
    assert result == 12
    assert area(width, 0) == 0


def test_part():
    assert area(0.1, 3) == pytest.approx(0.3)
"""


@cases(
    "said, args, expected, tolerance",
    [
        ("f(1, 'a') == [2]", [1, "a"], [2], ROUNDING),
        ("{1: (2, None)} == f({3})", [{3}], {1: (2, None)}, ROUNDING),
        ("f(-1) is None", [-1], None, ROUNDING),
        ("f(3 * 19, 2 / 4) == 'ab' + 'c' * 2", [57, 0.5], "abcc", ROUNDING),
        ("f(list(range(5))) == string.ascii_lowercase[:3]", [[0, 1, 2, 3, 4]], "abc", ROUNDING),
        ("f(b'a', 1j, {1: {2}}) == frozenset({1})", [b"a", 1j, {1: {2}}], frozenset({1}), ROUNDING),
        (
            "f(*[1], key=(2,)) == {i: i**2 for i in range(2)}",
            [1, Keyword("key", (2,))],
            {0: 0, 1: 1},
            ROUNDING,
        ),
        ("f([0] * 3, math.sqrt(4)) == sum([1, 2])", [[0, 0, 0], 2.0], 3, ROUNDING),
        ("f(1, int) == Counter('aab')", [1, Built("int", None, {})], Counter("aab"), ROUNDING),
        (
            "f(lambda x: x + 1) == deque([1])",
            [Built("lambda x: x + 1", None, {})],
            deque([1]),
            ROUNDING,
        ),
        ("f(float('inf')) == -math.inf", [math.inf], -math.inf, ROUNDING),
        ("f(Decimal('1.5')) == Fraction(1, 3)", [Decimal("1.5")], Fraction(1, 3), ROUNDING),
        ("f(2) == approx([1, 0.5])", [2], [1.0, 0.5], Tolerance(1e-6, 1e-12)),
        ("1e-3 > math.fabs(f(2) - 2.0 / 3.0)", [2], 2 / 3, Tolerance(0, 1e-3)),
        ("math.isclose(f(2), 0.5, rel_tol=0, abs_tol=0.01)", [2], 0.5, Tolerance(0, 0.01)),
        ("isclose(200, f(2), rel_tol=0.01)", [2], 200, Tolerance(0.01)),
        ("math.isclose(f(2), 0.5)", [2], 0.5, Tolerance(1e-9)),
        ("abs(f(2) - 100.0) < 0.5", [2], 100.0, Tolerance(0, 0.5)),
        ("abs(f(3) - 1234.5) < 1", [3], 1234.5, Tolerance(0, 1)),
        ("abs(0.25 - f(2)) <= 1e-3", [2], 0.25, Tolerance(0, 1e-3)),
        ("abs(f(0) - 0) < 0.1", [0], 0, Tolerance(0, 0.1)),
        ("f(2) == approx(3)", [2], 3, Tolerance(1e-6, 1e-12)),
        ("f(2) == approx(3, abs=0.5)", [2], 3, Tolerance(0, 0.5)),
        ("f(2) == approx(3, rel=0.5)", [2], 3, Tolerance(0.5, 1e-12)),
        ("f(2) == pytest.approx(3, rel=0.1, abs=0.5)", [2], 3, Tolerance(0.1, 0.5)),
    ],
)
def test_assertions_that_can_be_split(
    said: str, args: list[Any], expected: Any, tolerance: Tolerance
) -> None:
    (test,) = split_tests(f"assert {said}", "f")
    assert test == CallTest(args, expected, tolerance)
    assert type(test.expected) is type(expected) or isinstance(expected, int)


@cases(
    "source, reason",
    [
        ("assert f(1) == g(2)", "g is not known, nor a literal"),
        ("assert f(1) == f(2)", "several calls of the function"),
        ("assert f(f(1)) == 2", "depends on the returned value"),
        ("assert f(x) == 2", "x is not known, nor a literal"),
        ("assert f(**{'x': 1}) == 2", r"by \*\*"),
        ("assert f(1) == float('nan')", "nan is no finite number"),
        ("assert f(2**99999) == 2", "a power that is too large"),
        ("assert f('a' * 10**9) == 2", "a number above"),
        ("while True: pass\nassert f(1)", "takes too long"),
        ("def g(x): return g(x)\nassert f(g(1))", "too deeply"),
        ("assert f(1 / 0) == 2", "ZeroDivisionError"),
        ("assert f(().__class__.__base__) == 2", "tuple.__class__"),
        ("assert f(open('/etc/passwd').read()) == 2", "open is not known"),
        ("import os\nassert f(os.getcwd()) == 2", "os is not known"),
        ("assert f(sys.getsizeof(())) == 2", "sys.getsizeof is not known"),
        ("for x in f(3):\n    assert x == 1", "depends on the returned value"),
        ("assert 1 == 2\nassert f(1)", "fails for every returned value"),
        ("assert f(1) == '\\ud800'", "surrogate"),
        (f"assert f({'0x' + 'f' * 50_000}) == 2", "200000 bits is too large"),
        ("assert abs(f(3) - 1e-9) < 1e-6", "a tolerance of 1e-06 around 1e-09 says nothing"),
        (f"assert f({'[' * 60 + ']' * 60}) == 2", "nested too deeply"),
        ("assert math.isclose(f(1), 2, places=3)", "an unknown option of isclose"),
        ("assert abs(f(1) - 2) < 'a'", "not a number"),
        ("assert abs(f(3) - 0.5) < 1", "a tolerance of 1 around 0.5 says nothing"),
        ("assert abs(f(3) - 7) < 7", "says nothing"),
        ("assert abs(f(3) - 7) < -1", "expected a finite number from 0"),
        ("assert abs(f(3) - 7) < 1e999", "expected a finite number from 0"),
        ("assert f(3) == approx(0.1, rel=1)", "says nothing"),
        ("assert math.isclose(f(3), 7.5, rel_tol=1e308)", "says nothing"),
        ("for i, o in zip([[1]], [0.5]):\n    assertion(f(*i), o, 1)", "says nothing"),
        ("for i, o in zip([[1]], [0.5]):\n    assertion(f(*i), o, -1)", "finite number from 0"),
        (f"for i, o in zip([[1]], [1]):\n    assertion(f(*i), o, {10**400})", "no float is as"),
        ("with pytest.raises(ValueError):\n    f(1)", "executed: with"),
        ("def test_f(tmp_path):\n    assert f(1) == 1", "fixtures"),
        ("@pytest.mark.parametrize('a', [1])\ndef test_f(a):\n    assert f(a) == 1", "decorated"),
        ("class TestF:\n    def test_f(self):\n        assert f(1) == 1", "executed: class"),
        ("f = len\nassert f('a') == 1", "assigned"),
        ("x = 1", "no assertion"),
        ("assert f(1) ==", "cannot be parsed"),
        ("\0", "cannot be parsed"),
    ],
)
def test_what_cannot_be_split_is_refused(source: str, reason: str) -> None:
    with pytest.raises(RowRefused, match=reason):
        split_tests(source, "f")


VIEWS = [
    ("f(2) is True", [True], [1, 2, None, False]),
    ("f(2)", [True, 1, "a", [0]], [False, 0, "", [], None]),
    ("not f(2)", [False, 0, None, []], [True, 1, "a"]),
    ("f(1) != 2", [1, None, "2"], [2, 2.0]),
    ("sorted(f(1)) == [1, 2]", [[2, 1], (1, 2), {1, 2}], [[1], None, 3, [1, "a"]]),
    ("tuple(f(1)) == tuple([1, 2])", [[1, 2], (1, 2)], [[2, 1], None]),
    ("set(f(1)) == {1, 2}", [[1, 2, 1]], [[1], 5]),
    ("len(f(1)) == 3", ["abc", [1, 2, 3]], [[1], 3]),
    ("round(f(1), 2) == 0.33", [1 / 3, 0.3333], [0.3, "0.33"]),
    ("int(f(1)) == 35", [35.0, 35, "35"], [36, None, "x"]),
    ("f(1)['a'][0] == 1", [{"a": [1]}], [{}, [1], None]),
    ("f(1).lower() == 'ab'", ["AB"], ["b", None, 5]),
    ("f(1) in (1, 2)", [1, 2.0], [3, None]),
    ("isinstance(f(1), int) and f(1) > 3", [4], [3, 4.5, "4"]),
    ("1 < f(1) <= 3", [2, 3], [1, 4, None]),
    ("f(1) == 1 or f(1) == 2", [1, 2], [3]),
    ("all(x > 0 for x in f(1))", [[1, 2], ()], [[0], 5]),
    ("all(f(1)[i] == i for i in range(2))", [[0, 1]], [[1, 0], []]),
    ("[x * 2 for x in f(1)] == [2, 4]", [[1, 2]], [[2, 4]]),
    ("sorted(f(1), key=lambda p: -p[1]) == [(1, 2), (3, 1)]", [[(3, 1), (1, 2)]], [[(1, 2)]]),
    ("''.join(f(1)) == 'ab'", [["a", "b"]], [[1]]),
    ("abs(sum(f(1)) - 1.0) < 0.01", [[0.5, 0.501]], [[0.5], 1.0, None]),
    ("abs(poly([1, -1], f(1))) < 1e-4", [1, 1.00001], [0, None, "1", 2.0]),
    ("f(1) == (lambda: 3)()", [3], [4]),
    ("math.isnan(f(1))", [math.nan], [1.0, None]),
]
HELPER = """
import math
def poly(factors, x):
    return sum(factor * math.pow(x, i) for i, factor in enumerate(factors))
"""


def test_what_an_assertion_sees_of_a_value() -> None:
    wrong: list[Any] = []
    for said, right, others in VIEWS:
        tests = split_tests(f"{HELPER}assert {said}", "f")
        made = Problem("", "f", tests, python_equality=True)
        assert Problem.from_json(json.loads(json.dumps(made.to_json()))) == made
        for value in (*right, *others):
            line = json.dumps({"value": encode(value)}).encode()
            if all(accepts(made, test, line) for test in tests) != any(
                value is each for each in right
            ):
                wrong.append((said, value))
    assert not wrong


RUNS = [
    ("for x in range(2, 5):\n    assert f(x, x + 1) == str(x)",
     [([2, 3], "2"), ([3, 4], "3"), ([4, 5], "4")]),
    ("x = []\nx.append(1)\nassert f(x) == 1\nx.append(2)\nassert f(x) == 2",
     [([[1]], 1), ([[1, 2]], 2)]),
    ("d = {'a': 1, 'b': 2}\nfor k, v in d.items():\n    if v > 1:\n        assert f(k) == v",
     [(["b"], 2)]),
    ("def ref(x):\n    y = 0\n    while y * y < x: y += 1\n    return y\nfor i in (3, 9):\n"
     "    assert f(i) == ref(i), f'{i}'", [([3], 2), ([9], 3)]),
    ("def verify(given, wanted):\n    result = f(given)\n    assert result == wanted\nverify(1, 2)",
     [([1], 2)]),
    ("def g(x): return f(x + 1)\nassert g(1) == 5", [([2], 5)]),
    ("assert all(f(x) == y for x, y in [(1, 2), (3, 4)])", [([1], 2), ([3], 4)]),
    ("assert [f(1), f(2)] == [3, 4]", [([1], 3), ([2], 4)]),
    ("assert f(1) == 2 == f(2)", [([1], 2), ([2], 2)]),
    ("assert f(1) == 1 and f(2) == 2", [([1], 1), ([2], 2)]),
    ("import random\nrng = random.Random(42)\nx = rng.randint(0, 9)\nassert f(x) == x", [([1], 1)]),
    ("inputs = [[1]]\nfor i in inputs:\n    assertion(f(*i), i[0], 0)", [([1], 1)]),
    ("letters = ''.join(chr(97 + i) for i in range(3))\nassert f(letters.upper()) == letters",
     [(["ABC"], "abc")]),
    ("a, b = 1, 2\nassert f(a) == b", [([1], 2)]),
    ("def check(candidate):\n    print\n    assert candidate(0**0) == f'{1:02d}'", [([1], "01")]),
]  # fmt: skip


def test_code_around_assertions_is_computed() -> None:
    for source, wanted in RUNS:
        assert [(t.args, t.expected) for t in split_tests(source, "f")] == wanted, source


@cases(
    "said, right, wrong",
    [
        ("f(2) == 1.6e-19", 1.6000001e-19, 0.0),
        ("f(2) == 0.0", 1e-13, 1e-9),
        ("f(2) == 1e-7", 1.0000001e-7, 1.00001e-7),
        ("f(2) == 0.3", 0.1 + 0.2, 0.30001),
        ("abs(f(2) - 1234.5) < 1", 1235, 1236.0),
        ("math.isclose(f(2), 100.0, rel_tol=0.1)", 109.9, 111.0),
    ],
)
def test_what_a_tolerance_lets_pass(said: str, right: float, wrong: float) -> None:
    (test,) = split_tests(f"assert {said}", "f")
    for got, passed in ((right, True), (wrong, False), (1e300, False)):
        line = f'{{"value": {got!r}}}'.encode()
        assert same_value(test.expected, line, tolerance=test.tolerance) == passed


def test_nothing_of_a_row_is_executed() -> None:
    with pytest.raises(RowRefused):
        split_tests("assert f(pytest.fail('executed')) == 1", "f")
    split_tests("import pytest\ndef helper():\n    pytest.fail('executed')\nassert f(1)", "f")


def test_humaneval() -> None:
    made = problem("humaneval", {"prompt": PROMPT, "entry_point": "halves", "test": CHECK})
    assert made.entry == "halves"
    assert made.statement.startswith("Complete this function")
    assert ">>> halves([4, 7])" in made.statement
    assert passes(made, "def halves(items: List[int]): return [half(n) for n in items]")
    assert not passes(made, "def halves(items): return items")


def test_humaneval_plus() -> None:
    made = problem("humaneval", {"prompt": PROMPT, "entry_point": "halves", "test": PLUS})
    assert [test.args for test in made.hidden if isinstance(test, CallTest)] == [
        [[-1]], [[]]
    ]  # fmt: skip
    assert passes(made, "def halves(items): return tuple(half(n) for n in items)")


def test_humaneval_without_its_function_is_refused() -> None:
    with pytest.raises(RowRefused, match="no function called other"):
        problem("humaneval", {"prompt": PROMPT, "entry_point": "other", "test": CHECK})


MBPP = {
    "text": "Write a function to add two numbers, in a tuple.",
    "code": "def add(a, b=0):\n    return (a + b,)",
    "test_list": ["assert add(1, 2) == (3,)", "assert add(1, 1) == (2,)"],
    "test_setup_code": "",
}


def test_mbpp_shows_the_first_assertion() -> None:
    made = problem("mbpp", MBPP | {"challenge_test_list": ["assert add(-1, 1)==(0,)"]})
    assert "`add(1, 2)` returns `(3,)`" in made.statement
    assert made.statement.endswith("```python\ndef add(a, b=0):\n```")
    assert [test.expected for test in made.hidden if isinstance(test, CallTest)] == [(2,), (0,)]
    assert passes(made, MBPP["code"])
    assert not passes(made, "def add(a, b): return [a + b]")


def test_mbpp_plus_has_its_loop_at_the_top() -> None:
    loop = (
        "for i, (inp, exp) in enumerate(zip(inputs, results)):\n    assertion(add(*inp), exp, 0.5)"
    )
    more = f"inputs = [[1, 2], [5, 5]]\nresults = [(3,), (10.0,)]\n{loop}\n"
    made = problem("mbpp", MBPP | {"test": more})
    assert made.hidden == [
        CallTest([1, 1], (2,), ROUNDING),
        CallTest([5, 5], (10.0,), Tolerance(1e-6, 0.5)),
    ]


@cases(
    "change, reason",
    [
        ({"test_list": []}, "no tests"),
        ({"test_list": "assert add(1) == 1"}, "expected a list of assertions"),
        ({"test_list": ["assert add(1) == sub(1)"]}, "sub is not known"),
        ({"test_list": ["assert two(1) == sub(1)"]}, "which function is tested"),
        ({"test_setup_code": "import os\nos.remove('a')"}, "os is not known"),
        ({"text": None}, "prompt: got nothing"),
    ],
)
def test_bad_mbpp_rows_are_refused(change: Any, reason: str) -> None:
    with pytest.raises(RowRefused, match=reason):
        problem("mbpp", MBPP | change)


@cases("info", [None, [{"function_name": "area", "function_declaration": "def area(a, b):"}]])
def test_kodcode(info: Any) -> None:
    row = {"question": "The area of a rectangle.", "test": PYTEST, "test_info": info}
    made = problem("kodcode", row | {"solution": "def area(a, b):\n    return a * b"})
    assert made.statement.endswith("```python\ndef area(a, b):\n```")
    assert [test.args for test in made.hidden if isinstance(test, CallTest)] == [
        [3, 4], [5, 0], [0.1, 3]
    ]  # fmt: skip
    assert passes(made, "def area(a, b): return b * a")
