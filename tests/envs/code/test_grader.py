"""The grader: verdicts, limits, what tests see of each other, and whose fault a loss is."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from decimal import Decimal

import pytest
from arl_envs.code import verdict
from arl_envs.code.grader import Grade, Grader, order_of, trivial_passes
from arl_envs.code.problem import CallTest, Problem, TextTest
from arl_envs.code.verdict import Verdict

from agentgym_rl import make_sandbox
from tests.contracts.sandboxes import Opened
from tests.kit.cases import cases

from .losing import LosingBackend

pytestmark = pytest.mark.slow

CALL_TESTS = [CallTest([n], 2 * n) for n in (1, 2, 3, 0)]
DOUBLES = Problem("Double it.", "double", CALL_TESTS, time_limit_s=1.0)
TEXT_TESTS = [TextTest(f"{n} 2\n", f"{n + 2}\n") for n in range(4)]
ADDS = Problem("Add them.", "", TEXT_TESTS, time_limit_s=0.5)


def graded(world: Opened, problem: Problem, source: str, *, whole: bool = False) -> Grade:
    return world.run(Grader(world.backend).grade(problem, source, whole=whole))


def function(*body: str) -> str:
    return "\n".join(["def double(n):", *(f"    {line}" for line in body), ""])


CALLS = {
    "right": (function("return n + n"), Verdict.ACCEPTED),
    "right, and talkative": (function("print('hello')", "return n + n"), Verdict.ACCEPTED),
    "a method": (
        "class Solution:\n    def double(self, n):\n        return 2 * n",
        Verdict.ACCEPTED,
    ),
    "wrong": (function("return n * n"), Verdict.WRONG_ANSWER),
    "nothing": (function("pass"), Verdict.WRONG_ANSWER),
    "no plain value": (function("return object()"), Verdict.WRONG_ANSWER),
    "raises": (function("return n / 0"), Verdict.RUNTIME_ERROR),
    "no such function": ("def single(n):\n    return n", Verdict.RUNTIME_ERROR),
    "no Python": ("int main() {}", Verdict.RUNTIME_ERROR),
    "leaves": (function("import os", "os._exit(0)"), Verdict.RUNTIME_ERROR),
    "spins": (function("while True: pass"), Verdict.TIMEOUT),
    "hoards": (function("x = [0] * 10**9", "return 2 * n"), Verdict.MEMORY),
    "floods": (function("while True: print('x' * 1000)"), Verdict.RUNTIME_ERROR),
    "returns a book": (function("return 'x' * 10**7"), Verdict.RUNTIME_ERROR),
}


@cases("name", CALLS)
def test_verdicts_of_functions(world, name):
    source, verdict = CALLS[name]
    grade = graded(world, DOUBLES, source)
    assert grade.verdict is verdict, grade
    assert (grade.passed == len(DOUBLES.hidden)) == (verdict is Verdict.ACCEPTED)


TEXTS = {
    "right": ("print(sum(map(int, input().split())))", Verdict.ACCEPTED),
    "right, with blanks": ("print(sum(map(int, input().split())), ' \\n\\n')", Verdict.ACCEPTED),
    "wrong": ("print(2)", Verdict.WRONG_ANSWER),
    "silent": ("input()", Verdict.WRONG_ANSWER),
    "right, and fails": ("print(sum(map(int, input().split())))\n1 / 0", Verdict.RUNTIME_ERROR),
    "right, and more": ("print(sum(map(int, input().split())))\nprint(1)", Verdict.WRONG_ANSWER),
    "reads on": ("input(); input()", Verdict.RUNTIME_ERROR),
    "sleeps": ("import time\ntime.sleep(1000)", Verdict.TIMEOUT),
}


@pytest.mark.slow  # "sleeps" takes its time
@cases("name", TEXTS)
def test_verdicts_of_programs(world, name):
    source, verdict = TEXTS[name]
    assert graded(world, ADDS, source).verdict is verdict


def test_the_first_failure_ends_it_unless_all_are_wanted(world):
    source = function("return 2 * n if n != 2 else 0")
    first, whole = graded(world, DOUBLES, source), graded(world, DOUBLES, source, whole=True)
    passed = order_of(DOUBLES, source).index(1)
    assert (first.passed, first.tests_run, first.detail[:7]) == (passed, passed + 1, "test 2:")
    assert (whole.passed, whole.tests_run, whole.detail[:7]) == (3, 4, "test 2:")


def test_tests_run_in_an_order_that_no_program_knows():
    for total in (1, 2, 3, 4, 5, 8, 15, 16, 20, 100):
        problem = Problem("", "double", [CallTest([n], 2 * n) for n in range(total)])
        orders = [order_of(problem, f"# {number}") for number in range(30)]
        assert order_of(problem, "# 7") == orders[7]
        assert total < 3 or len({*map(tuple, orders)}) > min(total - 2, 20)
        for order in orders:
            assert sorted(order) == [*range(total)]
            assert all(b != a + 1 for a, b in itertools.pairwise(order)), (total, order)
            # Later tests are often larger: they stay behind those of the groups before.
            assert max(abs(at - n) for at, n in enumerate(order)) < 16


def test_two_timeouts_end_it_all_the_same(world):
    problem = Problem("", "double", DOUBLES.hidden, time_limit_s=0.2)
    grade = graded(world, problem, function("while True: pass"), whole=True)
    assert (grade.verdict, grade.passed, grade.tests_run) == (Verdict.TIMEOUT, 0, 2)


@pytest.mark.slow
def test_who_sleeps_a_little_in_each_test_runs_out_of_time(world):
    """Of the eight tests five at most are run in the 4.6 s for all; each one alone may take 2.3."""
    tests = [CallTest([n], 2 * n) for n in range(1, 9)]
    problem = Problem("", "double", tests, time_limit_s=0.1)
    sleeps = function("import time", "time.sleep(1)", "return n")
    right = function("import time", "time.sleep(1)", "return 2 * n")

    async def both() -> list[Grade]:
        grader = Grader(world.backend)
        return await asyncio.gather(
            grader.grade(problem, sleeps, whole=True), grader.grade(problem, right)
        )

    grade, other = world.run(both())
    assert grade.verdict is Verdict.WRONG_ANSWER
    assert 1 <= grade.tests_run <= 5
    assert other.verdict is Verdict.TIMEOUT


def test_problems_get_the_limits_they_promise(world):
    problem = Problem("", "double", CALL_TESTS[:1], memory_mb=400, time_limit_s=10)
    takes = function("x = bytearray(300 << 20)", "return 2 * n")
    assert graded(world, problem, takes).verdict is Verdict.ACCEPTED


def test_seconds_are_counted_by_fractions(world):
    spins = "import time\ndef double(n):\n    end = time.process_time() + {}\n"
    spins += "    while time.process_time() < end: pass\n    return 2 * n\n"
    problem = Problem("", "double", [CallTest([1], 2)], time_limit_s=0.3)
    assert graded(world, problem, spins.format(0.05)).verdict is Verdict.ACCEPTED
    assert graded(world, problem, spins.format(0.4)).verdict is Verdict.TIMEOUT


def test_a_test_finds_nothing_of_another(world):
    source = function(
        "import os",
        "paths = ['/box/left', '/tmp/left', '/dev/shm/left']",
        "found = [path for path in paths if os.path.exists(path)]",
        "for path in paths: open(path, 'w').close()",
        "return 2 * n if not found else found",
    )
    assert graded(world, DOUBLES, source, whole=True).verdict is Verdict.ACCEPTED


def test_a_function_is_given_its_own_arguments(world):
    args = [[1, (2, "x")], {"k": {3, 4}}, None, 2.5, True]
    problem = Problem("", "echo", [CallTest(args, args[:])])
    assert graded(world, problem, "def echo(*args):\n    return list(args)").passed == 1


def test_a_prelude_is_there(world):
    problem = Problem("", "double", DOUBLES.hidden, prelude="from typing import List\n")
    source = "def double(n: List) -> List:\n    return 2 * n"
    assert graded(world, problem, source).verdict is Verdict.ACCEPTED


def test_what_knows_nothing_is_paid_nothing(world):
    tests = [CallTest([n], n // 2) for n in (2, 3, 2, 4, 5, 6)]
    problem = Problem("", "double", tests)
    assert trivial_passes(problem) == 3
    for answer, paid in (("1", 0.0), ("n // 2 if n < 6 else 0", 2 / 3), ("n // 2", 1.0)):
        grade = graded(world, problem, function(f"return {answer}"), whole=True)
        assert grade.fraction == paid


def test_where_a_coin_passes_half_all_or_nothing_is_paid(world):
    problem = Problem("", "double", [CallTest([n], n % 2 == 0) for n in range(5)])
    for answer, paid in (("n == 4", 0.0), ("n % 2 == 0", 1.0)):
        grade = graded(world, problem, function(f"return {answer}"), whole=True)
        assert grade.fraction == paid


def test_an_echo_is_paid_nothing():
    pairs = [([1, 2], [1, 2]), ([2, 1], [1, 2]), ([3], [3]), ([4], [4]), ([5], [5])]
    assert trivial_passes(Problem("", "f", [CallTest([n], m) for n, m in pairs])) == 4
    lines = [("a\n", "a\n"), ("b\n", "b\n"), ("c\n", "d\n"), ("x\ne\n", "e\n")]
    assert trivial_passes(Problem("", "", [TextTest(n, m) for n, m in lines])) == 3  # the last line
    places = [CallTest([1, 2, 3], n) for n in (1, 2, 3, 4)]
    assert trivial_passes(Problem("", "f", places)) == 1


@cases("place", [0, -1])
def test_the_first_or_last_line_of_the_input_is_an_echo(place):
    inputs = [f"{n} 1\n{n} 2\n{n} 3\n" for n in range(4)]
    texts = [TextTest(given, given.splitlines()[place]) for given in inputs]
    assert trivial_passes(Problem("", "", texts)) == 4


def lost(source: str, *, losses: int, kills_all: bool = False) -> tuple[Grade, LosingBackend]:
    backend = LosingBackend(losses=losses, kills_all=kills_all)
    problem = Problem("", "", [TextTest("", "42\n")] * 3)
    return asyncio.run(Grader(backend).grade(problem, source, whole=True)), backend


def test_a_sandbox_lost_by_chance_is_replaced():
    grade, backend = lost("# deadly", losses=1)
    assert (grade.verdict, grade.passed, backend.programs) == (Verdict.ACCEPTED, 3, 4)


def test_a_program_that_is_the_end_of_its_sandbox_twice_is_to_blame():
    grade, _ = lost("# deadly", losses=2)
    assert (grade.verdict, grade.passed, grade.tests_run) == (Verdict.RUNTIME_ERROR, 0, 1)
    assert "twice" in grade.detail


def test_sandboxes_that_no_program_survives_are_to_blame_themselves():
    grade, backend = lost("print(42)", losses=10, kills_all=True)
    assert (grade.verdict, backend.programs) == (Verdict.INFRA_ERROR, 3)


@cases(
    "problem, source",
    [
        (
            Problem("2 ** n", "", [TextTest("20000\n", f"{Decimal(2**20_000)}\n")]),
            "print(2 ** int(input()))",
        ),
        (Problem("2 ** n", "f", [CallTest([20_000], 2**20_000)]), "def f(n): return 2 ** n"),
        (
            Problem("digits", "f", [CallTest([2**20_000], 6021)]),
            "def f(n): return len(str(n))",
        ),
    ],
    ids=["printed", "returned", "given"],
)
def test_numbers_of_more_digits_than_python_writes_by_default(world, problem, source):
    assert graded(world, problem, source).verdict is Verdict.ACCEPTED


NUMPY = "import numpy\ndef double(n): return numpy.int64(2 * n)"
IN_PYTHON = replace(DOUBLES, python_equality=True)


def test_a_package_that_the_sandbox_does_not_have_is_named_once(world, caplog, monkeypatch):
    monkeypatch.setattr(verdict, "_LOGGED", set())
    for _ in range(2):
        assert graded(world, IN_PYTHON, NUMPY).verdict is Verdict.RUNTIME_ERROR
    assert caplog.text.count("imports numpy") == 1
    assert "--sandbox.options.packages='[\"numpy\"]'" in caplog.text


def test_numpy_is_there_where_it_is_shown():
    pytest.importorskip("numpy")

    async def grade() -> Grade:
        async with make_sandbox("local", packages=("numpy",)) as sandboxes:
            return await Grader(sandboxes).grade(IN_PYTHON, NUMPY)

    assert asyncio.run(grade()).verdict is Verdict.ACCEPTED
