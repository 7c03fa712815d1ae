"""The grader: the submission runs once per hidden test, and its outputs are compared here.

Inputs go into the sandbox, plain values come out; expected values stay in this process. Each test
has a fresh process, without files that another test wrote. Some state survives (a kernel counter
that an earlier test moved), but it reveals little, as tests run in an order of their own.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentgym_rl import EnvError, Sandbox, SandboxError, SandboxLost
from agentgym_rl.gym import ExecResult, Limits, SandboxBackend
from agentgym_rl.gym.sandbox_records import Status
from agentgym_rl.runtime import parse_python

from . import driver
from .driver import encode
from .problem import CallTest, Problem, Test, TextTest, spelled
from .trivial import passes, trivial_passes
from .verdict import CREATE_TIMEOUT_S, Verdict, blame, log_missing

OUTPUT_MARGIN_BYTES = 1 << 16
"""The bytes that a submission may print beyond twice the expected answer; the rest is not read."""
VIEWED_BYTES = 1 << 17
"""The further bytes of a value if only a part of it is compared."""
WALL_FACTOR, WALL_MARGIN_S = 3.0, 2.0
"""The wall-clock limit, as a factor of the CPU limit and a margin, ends sleeping programs. CPU
seconds decide otherwise, as neighbours share the processors."""
MAX_TIMEOUTS = 2
"""The number of timeouts after which the remaining tests of a submission count as failed."""
TOTAL_FACTOR, MAX_TOTAL_S = 12.0, 100.0
"""The wall-clock limit of all tests of a submission: a multiple of its time limit, with a maximum
in seconds. Sleeps could otherwise outlast the step, and then the program would not be blamed."""
MIN_SHUFFLED = 8
"""The least size of a group of neighbouring tests that are shuffled together: later tests are
often larger, and a program that is too slow for those then still passes the others first."""
_STATUS = {
    Status.OK: None,
    Status.TIMEOUT: Verdict.TIMEOUT,
    Status.CPU_LIMIT: Verdict.TIMEOUT,
    Status.MEMORY_LIMIT: Verdict.MEMORY,
}


@dataclass(frozen=True, slots=True)
class Grade:
    """The result of the hidden tests of a submission."""

    verdict: Verdict
    passed: int = 0
    total: int = 0
    tests_run: int = 0
    trivial: int = 0
    """The number of tests that the best constant or an echo of the input passes, without any
    knowledge; counted only if all tests were requested."""
    cpu_ms: float = 0.0
    detail: str = ""
    """The description of the first failure; it reveals no hidden values."""

    @property
    def fraction(self) -> float:
        """Return the share of tests passed among those that a constant or an echo does not pass."""
        if self.total == self.trivial:
            return float(self.verdict is Verdict.ACCEPTED)
        return max(0.0, (self.passed - self.trivial) / (self.total - self.trivial))


def _lean(source: str) -> str:
    """Return `source` without parts that each test would compile in vain: a fifth of its CPU."""
    tree = parse_python(source)
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
    """A grader of submissions in sandboxes of a started backend."""

    def __init__(self, sandboxes: SandboxBackend) -> None:
        self._sandboxes = sandboxes

    async def grade(self, problem: Problem, source: str, *, whole: bool = False) -> Grade:
        """Run `source` against the hidden tests until one fails; with `whole`, against all of them.

        Failures of the sandbox are not raised; they give `Verdict.INFRA_ERROR`.
        """
        grading = _Grading(self._sandboxes, problem, source, whole)
        try:
            await grading.run()
        except SandboxError as error:
            return Grade(Verdict.INFRA_ERROR, detail=str(error))
        return grading.grade()


class _Grading:
    """The grading of one submission."""

    def __init__(
        self, sandboxes: SandboxBackend, problem: Problem, source: str, whole: bool
    ) -> None:
        self._sandboxes, self._problem, self._source = sandboxes, problem, source
        self._whole = whole
        self._order = order_of(problem, source)
        self._next = 0
        """The position in that order of the next test."""
        self._passed = 0
        self._timeouts = 0
        self._losses = 0
        """The number of sandboxes lost in the current test."""
        self._spent = False
        """Whether the submission caused losses or used up its time: then the other tests fail."""
        self._is_checker_known = False
        """Whether the row's checker has been tested."""
        self._cpu_ms = self._wall_ms = 0.0
        self._bounds: Limits | None = None
        """The limits of new sandboxes, if the default ones allow less than the problem."""
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
        """Return the next test."""
        return self._problem.hidden[self._order[self._next]]

    @property
    def _over(self) -> bool:
        if self._spent or (self._failure and not self._whole):
            return True
        return self._next == len(self._problem.hidden) or self._timeouts == MAX_TIMEOUTS

    async def run(self) -> None:
        """Run all tests that are needed.

        Raises:
            SandboxError: a sandbox failed, not because of the program.
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
        """Run tests in one sandbox until none is left or the sandbox is unusable."""
        used = False
        while not self._over:
            if used:
                await sandbox.reset()
            used = True
            test = self._test
            result = await self._run(sandbox, test)
            verdict = _judge(result, test, self._problem)
            if verdict is None and self._problem.checker and isinstance(test, TextTest):
                if result.state_lost:
                    raise SandboxLost(f"{sandbox.id}: lost before its output was checked")
                await sandbox.reset()
                verdict = await self._checked(sandbox, test, _output(result, self._problem))
            self._count(result, verdict)
            if result.state_lost:
                return

    async def _run(self, sandbox: Sandbox, test: Test) -> ExecResult:
        limits = _limits(self._problem, test, sandbox.limits)
        if isinstance(test, TextTest):
            stdin, problem = test.stdin.encode("utf-8", "surrogatepass"), self._problem
            files = {problem.input_file: stdin} if problem.input_file else None
            collect = [problem.output_file] if problem.output_file else []
            return await sandbox.run_python(
                self._source, stdin=stdin, files=files, collect=collect, limits=limits
            )
        order = {
            "source": self._source,
            "prelude": self._problem.prelude,
            "entry": self._problem.entry,
            "args": encode(list(test.args)),
        }
        return await sandbox.run_python(DRIVER, stdin=json.dumps(order).encode(), limits=limits)

    async def _checked(self, sandbox: Sandbox, test: TextTest, output: bytes) -> Verdict | None:
        """Return the verdict of the row's checker on `output`, in a clean sandbox.

        Once for a submission the checker itself is tested: it has to accept the row's own output,
        and to reject nonsense, and no output. A checker that fails because of an output rejects it.

        Raises:
            EnvError: the checker fails this test.
        """
        right = test.expected.encode("utf-8", "surrogatepass")
        accepted = await self._accepts(sandbox, test, output)
        if not self._is_checker_known:
            self._is_checker_known = True
            others = {"rejects the row's own output": right}
            if accepted:
                others = {"accepts nonsense": NONSENSE}
                others |= {"accepts an empty output": b""} if right.strip() else {}
            for fault, other in others.items():
                await sandbox.reset()
                if await self._accepts(sandbox, test, other) == accepted:
                    raise EnvError(f"the row's checker {fault}: leave this row out")
        return None if accepted else Verdict.WRONG_ANSWER

    async def _accepts(self, sandbox: Sandbox, test: TextTest, output: bytes) -> bool:
        given = [text.encode("utf-8", "surrogatepass") for text in (test.stdin, test.expected)]
        given += [output, self._problem.checker.encode()]
        files = dict[str, bytes](zip([*CHECKED, CHECKER], given, strict=True))
        result = await sandbox.run_python(RUN_CHECKER, files=files, limits=_of_checker(sandbox))
        if result.state_lost:
            raise SandboxLost(f"{sandbox.id}: lost by the row's checker")
        return result.status is Status.OK and _score(result.stdout) >= 1

    def _count(self, result: ExecResult, verdict: Verdict | None) -> None:
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
            log_missing(detail)
            self._failure = verdict, f"test {self._order[self._next] + 1}: {detail}"
        self._losses = 0
        self._next += 1

    async def _lost(self, error: SandboxLost) -> None:
        """Record the loss of a sandbox; at the second one, blame the program (one may be chance).

        Raises:
            SandboxError: a harmless program loses its sandbox as well.
        """
        self._losses += 1
        if self._losses == 1:
            return
        await blame(self._sandboxes, error)
        self._spent = True
        self._conclude(Verdict.RUNTIME_ERROR, "the program was the end of its sandbox, twice")


def order_of(problem: Problem, source: str) -> list[int]:
    """Return the order of the tests: the same for the same program, and unknown to it.

    No test follows its predecessor in the problem, whose input may be the answer to it.
    """
    total = len(problem.hidden)
    seed = spelled((source, [test.expected for test in problem.hidden]))
    rng = random.Random(hashlib.sha256(seed.encode("utf-8", "surrogatepass")).digest())
    num_groups = max(1, total // MIN_SHUFFLED)
    starts = [total * number // num_groups for number in range(num_groups + 1)]
    order: list[int] = []
    for start, end in itertools.pairwise(starts):
        order += _shuffled(rng, range(start, end), after=order[-1:])
    return order


def _shuffled(rng: random.Random, tests: Sequence[int], *, after: list[int]) -> list[int]:
    """Return a group in an order in which no test follows its predecessor, which may end the group
    before. About every third order qualifies; for few tests perhaps only the reverse does."""
    for _ in range(100):
        order = rng.sample(tests, len(tests))
        if all(b != a + 1 for a, b in itertools.pairwise([*after, *order])):
            return order
    return list(reversed(tests))


def _wall_s(problem: Problem) -> float:
    return WALL_FACTOR * problem.time_limit_s + WALL_MARGIN_S


def _total_s(problem: Problem) -> float:
    """Return the wall-clock limit of all tests, with room for `MAX_TIMEOUTS` timeouts at least."""
    least_s = MAX_TIMEOUTS * _wall_s(problem)
    return min(max(TOTAL_FACTOR * problem.time_limit_s, least_s), MAX_TOTAL_S)


def _larger(bounds: Limits, problem: Problem) -> Limits | None:
    """Return `bounds` widened to the problem's limits; None if they suffice."""
    larger = replace(
        bounds,
        wall_s=max(bounds.wall_s, _wall_s(problem)),
        cpu_s=max(bounds.cpu_s, math.ceil(problem.time_limit_s)),
        memory_mb=max(bounds.memory_mb, problem.memory_mb),
    )
    return None if larger == bounds else larger


def _limits(problem: Problem, test: Test, bounds: Limits) -> Limits:
    """Return the limits of one test, within those of the sandbox."""
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


CHECKED = ("input.txt", "correct_output.txt", "solution_output.txt")
CHECKER = "checker.py"
RUN_CHECKER = f"""\
import runpy, sys
sys.argv = {[CHECKER, *CHECKED]!r}
runpy.run_path({CHECKER!r}, run_name="__main__")
"""
NONSENSE = b"?\x00!\n"
CHECKER_S = 10
"""The CPU seconds of a checker."""


def _of_checker(sandbox: Sandbox) -> Limits:
    most = sandbox.limits
    wall_s = min(most.wall_s, WALL_FACTOR * CHECKER_S)
    return replace(most, cpu_s=min(most.cpu_s, CHECKER_S), wall_s=wall_s)


def _score(printed: bytes) -> float:
    """Return the number that a checker printed last, from 0 to 100; -1 if there is none."""
    try:
        score = float(printed.split()[-1][:20])
    except (IndexError, ValueError):
        return -1
    return score if 0 <= score <= 100 else -1


def _output(result: ExecResult, problem: Problem) -> bytes:
    """Return the output of a program: its file, if it wrote one, or else what it printed."""
    return result.files.get(problem.output_file, result.stdout)


def _judge(result: ExecResult, test: Test, problem: Problem) -> Verdict | None:
    """Return the verdict of a failed test; None if the test is passed."""
    if (verdict := _STATUS.get(result.status, Verdict.RUNTIME_ERROR)) is not None:
        return verdict
    if result.cpu_ms > 1000 * problem.time_limit_s:
        return Verdict.TIMEOUT
    if isinstance(test, CallTest) and not result.stdout:  # it ended before the call returned
        return Verdict.RUNTIME_ERROR
    output = _output(result, problem)
    if isinstance(test, TextTest) and problem.checker:
        return Verdict.WRONG_ANSWER if result.truncated or not output.strip() else None
    passed = passes(problem, test, output) and not result.truncated
    return None if passed else Verdict.WRONG_ANSWER


def _detail(result: ExecResult) -> str:
    """Return the end of the run and the last error line, without terminal control characters."""
    lines = result.stderr[-800:].decode("utf-8", "replace").strip().splitlines()
    last = "".join(c for c in lines[-1] if c.isprintable())[:200] if lines else ""
    return f"{result.status.value}, exit code {result.exit_code}, signal {result.signal} {last}"
