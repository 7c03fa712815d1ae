"""Grading: the submission runs once per hidden test, and what comes out is compared here.

Inputs go into the sandbox, plain values come out; expected values stay in this process. Each test
has a fresh process, and nothing that another one wrote. What a sandbox cannot take back (a counter
of the kernel that an earlier test has moved) says little, as tests run in an order of their own.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentgym_rl.core.errors import SandboxError, SandboxLost
from agentgym_rl.gym.sandbox import ExecResult, Limits, Sandbox, SandboxBackend, Status

from . import driver
from .blame import CREATE_TIMEOUT_S, blame
from .calculator.statements import view_of
from .compare import equal, same_text, same_value, value_of
from .driver import encode
from .problem import CallTest, Problem, Test, TextTest
from .verdict import Verdict

OUTPUT_MARGIN_BYTES = 1 << 16
"""What a submission may print beyond twice the expected answer: the rest is not worth reading."""
VIEWED_BYTES = 1 << 17
"""The same of a value of which only a part is compared."""
WALL_FACTOR, WALL_MARGIN_S = 3.0, 2.0
"""CPU seconds are what counts, as neighbours share the processors; who sleeps ends by these."""
MAX_LINES = 50
"""Of an input: so many of them are tried as echoes."""
MAX_TIMEOUTS = 2
"""Tests of one submission that may run into the time limit; the rest then count as failed."""
TOTAL_FACTOR, MAX_TOTAL_S = 12.0, 100.0
"""Time limits, by the clock, that all tests of a submission may take together, and seconds at
most: who sleeps a little in each would otherwise outlast the step, which is nobody's fault."""
MIN_SHUFFLED = 8
"""Tests are shuffled in groups of at least so many that stand together: the later ones are often
the larger ones, and a program too slow for those passes the others first."""
_STATUS = {
    Status.OK: None,
    Status.TIMEOUT: Verdict.TIMEOUT,
    Status.CPU_LIMIT: Verdict.TIMEOUT,
    Status.MEMORY_LIMIT: Verdict.MEMORY,
}


@dataclass(frozen=True, slots=True)
class Grade:
    """What hidden tests said of a submission."""

    verdict: Verdict
    passed: int = 0
    total: int = 0
    tests_run: int = 0
    trivial: int = 0
    """Tests that a program passes which knows nothing: the best constant, or an echo. Counted
    where all tests were wanted."""
    cpu_ms: float = 0.0
    detail: str = ""
    """Of the first failure; says nothing of hidden values."""

    @property
    def fraction(self) -> float:
        """The share of tests passed, of those that take more than a constant or an echo."""
        if self.total == self.trivial:
            return float(self.verdict is Verdict.ACCEPTED)
        return max(0.0, (self.passed - self.trivial) / (self.total - self.trivial))


def _lean(source: str) -> str:
    """Without what every test would compile in vain: a fifth of its processor time."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in node.args.args:
                argument.annotation = None
    return ast.unparse(tree)


DRIVER = _lean(Path(driver.__file__).read_text(encoding="utf-8"))


class Grader:
    """Grades submissions in sandboxes of a started backend."""

    def __init__(self, sandboxes: SandboxBackend) -> None:
        self._sandboxes = sandboxes

    async def grade(self, problem: Problem, source: str, *, whole: bool = False) -> Grade:
        """Run `source` against the hidden tests, up to the first that fails; `whole`: all of them.

        Failures of the sandbox give `Verdict.INFRA_ERROR`; it raises none of them.
        """
        grading = _Grading(self._sandboxes, problem, source, whole)
        try:
            await grading.run()
        except SandboxError as error:
            return Grade(Verdict.INFRA_ERROR, detail=str(error))
        return grading.grade()


class _Grading:
    """One submission on its way through the tests."""

    def __init__(
        self, sandboxes: SandboxBackend, problem: Problem, source: str, whole: bool
    ) -> None:
        self._sandboxes, self._problem, self._source = sandboxes, problem, source
        self._whole = whole
        self._order = order_of(problem, source)
        self._next = 0
        """Place in that order of the test to be run."""
        self._passed = 0
        self._timeouts = 0
        self._losses = 0
        """Sandboxes that the present test was the end of."""
        self._spent = False
        """Of it no more is run: it is to blame for losses, or has had its time. The rest failed."""
        self._cpu_ms = self._wall_ms = 0.0
        self._bounds: Limits | None = None
        """Of its sandboxes, where those that there are allow less than the problem."""
        self._failure: tuple[Verdict, str] | None = None

    def grade(self) -> Grade:
        total = len(self._problem.hidden)
        accepted = self._passed == total
        assert accepted != bool(self._failure), "a submission passes or fails, and not both"
        verdict, detail = self._failure or (Verdict.ACCEPTED, "")
        trivial = trivial_passes(self._problem) if self._whole else 0
        return Grade(verdict, self._passed, total, self._next, trivial, self._cpu_ms, detail)

    @property
    def _test(self) -> Test:
        """The one to be run."""
        return self._problem.hidden[self._order[self._next]]

    @property
    def _over(self) -> bool:
        if self._spent or (self._failure and not self._whole):
            return True
        return self._next == len(self._problem.hidden) or self._timeouts == MAX_TIMEOUTS

    async def run(self) -> None:
        """All that must be run.

        Raises:
            SandboxError: a sandbox failed, and not by this program's doing.
        """
        while not self._over:
            try:
                async with await self._sandboxes.create(
                    limits=self._bounds, timeout_s=CREATE_TIMEOUT_S
                ) as sandbox:
                    if self._bounds is None and (larger := _larger(sandbox.limits, self._problem)):
                        self._bounds = larger
                    else:
                        await self._in_one(sandbox)
            except SandboxLost as error:
                await self._lost(error)

    async def _in_one(self, sandbox: Sandbox) -> None:
        """Tests, until there are no more or the sandbox is no good any more."""
        used = False
        while not self._over:
            if used:
                await sandbox.reset()
            used = True
            result = await self._run(sandbox, self._test)
            self._count(result)
            if result.state_lost:
                return

    async def _run(self, sandbox: Sandbox, test: Test) -> ExecResult:
        limits = _limits(self._problem, test, sandbox.limits)
        if isinstance(test, TextTest):
            stdin = test.stdin.encode("utf-8", "surrogatepass")
            return await sandbox.run_python(self._source, stdin=stdin, limits=limits)
        order = {
            "source": self._source,
            "prelude": self._problem.prelude,
            "entry": self._problem.entry,
            "args": encode(list(test.args)),
        }
        return await sandbox.run_python(DRIVER, stdin=json.dumps(order).encode(), limits=limits)

    def _count(self, result: ExecResult) -> None:
        verdict = _judge(result, self._test, self._problem)
        self._cpu_ms += result.cpu_ms
        self._wall_ms += result.wall_ms
        self._conclude(verdict, _detail(result))
        total_s = _total_s(self._problem)
        if self._wall_ms > 1000 * total_s and self._next < len(self._problem.hidden):
            self._spent = True
            why = f"its tests have had their {total_s:g} seconds"
            self._failure = self._failure or (Verdict.TIMEOUT, why)

    def _conclude(self, verdict: Verdict | None, detail: str) -> None:
        self._passed += verdict is None
        self._timeouts += verdict is Verdict.TIMEOUT
        if verdict is not None and self._failure is None:
            self._failure = verdict, f"test {self._order[self._next] + 1}: {detail}"
        self._losses = 0
        self._next += 1

    async def _lost(self, error: SandboxLost) -> None:
        """Once may be chance, twice is the program, if an innocent one fares well meanwhile.

        Raises:
            SandboxError: the innocent one fares no better.
        """
        self._losses += 1
        if self._losses == 1:
            return
        await blame(self._sandboxes, error)
        self._spent = True
        self._conclude(Verdict.RUNTIME_ERROR, "the program was the end of its sandbox, twice")


def order_of(problem: Problem, source: str) -> list[int]:
    """In which order the tests run: the same for the same program, and unknown to it.

    No test follows the one that stands before it, whose input may be what it asks for.
    """
    total = len(problem.hidden)
    seed = repr((source, [test.expected for test in problem.hidden]))
    rng = random.Random(hashlib.sha256(seed.encode("utf-8", "surrogatepass")).digest())
    num_groups = max(1, total // MIN_SHUFFLED)
    starts = [total * number // num_groups for number in range(num_groups + 1)]
    order: list[int] = []
    for start, end in itertools.pairwise(starts):
        order += _shuffled(rng, range(start, end), after=order[-1:])
    return order


def _shuffled(rng: random.Random, tests: Sequence[int], *, after: list[int]) -> list[int]:
    """Return a group in an order in which no test follows its predecessor, the group before's last
    one included. About every third order will do; of few tests perhaps none but the reverse."""
    for _ in range(100):
        order = rng.sample(tests, len(tests))
        if all(b != a + 1 for a, b in itertools.pairwise([*after, *order])):
            return order
    return list(reversed(tests))


def trivial_passes(problem: Problem) -> int:
    """Hidden tests that the best constant passes, or a program that gives back its input, an
    argument of it, or a line. All of them, where only two answers occur, or several are right."""
    views = any(isinstance(test, CallTest) and test.view for test in problem.hidden)
    if views or _num_answers(problem) <= 2:  # a coin would pass half of them
        return len(problem.hidden)
    constants: dict[str, Any] = {repr(test.expected): test.expected for test in problem.hidden}
    passes = [
        sum(_says(problem, test, value) for test in problem.hidden) for value in constants.values()
    ]
    echoes: Counter[int] = Counter()
    for test in problem.hidden:
        for place, value in enumerate(_given(test)):
            echoes[place] += _says(problem, test, value)
    return max(*passes, *echoes.values())


def _says(problem: Problem, test: Test, value: Any) -> bool:
    """Whether a program that gives back `value` passes."""
    if isinstance(test, TextTest):
        return passes(problem, test, value.encode("utf-8", "surrogatepass"))
    return passes(problem, test, json.dumps({"value": encode(value)}).encode())


def passes(problem: Problem, test: Test, said: bytes) -> bool:
    """Whether what a program said is right."""
    if isinstance(test, TextTest):
        return same_text(test.expected, said, tolerance=test.tolerance)
    python, tolerance = problem.python_equality, test.tolerance
    if not test.view:
        return same_value(test.expected, said, tolerance=tolerance, python=python)
    try:
        seen = view_of(test.view, value_of(said, python=python))
    except ValueError:
        return False
    return equal(test.expected, seen, tolerance=tolerance, python=python)


def _num_answers(problem: Problem) -> int:
    """Of those that no one constant passes together."""
    left = list(problem.hidden)
    count = 0
    while left:
        first, count = left[0], count + 1
        left = [test for test in left[1:] if not _says(problem, test, first.expected)]
    return count


def _given(test: Test) -> Sequence[Any]:
    """What a program may give back that does nothing."""
    if isinstance(test, CallTest):
        return [*test.args, list(test.args)]
    lines = test.stdin.rstrip("\r\n").split("\n")
    return [test.stdin, lines[-1], *lines[:MAX_LINES]]


def _wall_s(problem: Problem) -> float:
    return WALL_FACTOR * problem.time_limit_s + WALL_MARGIN_S


def _total_s(problem: Problem) -> float:
    """By the clock, of all tests of a submission; room for `MAX_TIMEOUTS` in any case."""
    least_s = MAX_TIMEOUTS * _wall_s(problem)
    return min(max(TOTAL_FACTOR * problem.time_limit_s, least_s), MAX_TOTAL_S)


def _larger(bounds: Limits, problem: Problem) -> Limits | None:
    """`bounds` widened to what the problem promises; None if they suffice."""
    larger = replace(
        bounds,
        wall_s=max(bounds.wall_s, _wall_s(problem)),
        cpu_s=max(bounds.cpu_s, math.ceil(problem.time_limit_s)),
        memory_mb=max(bounds.memory_mb, problem.memory_mb),
    )
    return None if larger == bounds else larger


def _limits(problem: Problem, test: Test, bounds: Limits) -> Limits:
    """Of one test; what the sandbox allows at most."""
    expected = test.expected if isinstance(test, TextTest) else json.dumps(encode(test.expected))
    expected_bytes = len(expected.encode("utf-8", "surrogatepass"))
    if isinstance(test, CallTest) and test.view:
        expected_bytes += VIEWED_BYTES
    wanted = Limits(
        wall_s=_wall_s(problem),
        cpu_s=math.ceil(problem.time_limit_s),
        memory_mb=problem.memory_mb,
        processes=16,
        disk_mb=bounds.disk_mb,
        file_mb=8,
        open_files=64,
        output_bytes=2 * expected_bytes + OUTPUT_MARGIN_BYTES,
    )
    least = {name: min(getattr(wanted, name), getattr(bounds, name)) for name in Limits.__slots__}
    return Limits(**least)


def _judge(result: ExecResult, test: Test, problem: Problem) -> Verdict | None:
    """None: the test is passed."""
    if (verdict := _STATUS.get(result.status, Verdict.RUNTIME_ERROR)) is not None:
        return verdict
    if result.cpu_ms > 1000 * problem.time_limit_s:
        return Verdict.TIMEOUT
    if isinstance(test, CallTest) and not result.stdout:  # it ended before the call returned
        return Verdict.RUNTIME_ERROR
    passed = passes(problem, test, result.stdout) and not result.truncated
    return None if passed else Verdict.WRONG_ANSWER


def _detail(result: ExecResult) -> str:
    """What the program itself said last; nothing that would move a terminal's cursor."""
    said = result.stderr[-800:].decode("utf-8", "replace").strip().splitlines()
    last = "".join(c for c in said[-1] if c.isprintable())[:200] if said else ""
    return f"{result.status.value}, exit code {result.exit_code}, signal {result.signal} {last}"
