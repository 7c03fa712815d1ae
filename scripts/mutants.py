"""The test of the tests by a sample of planted mistakes: `make mutants`; by hand, not in CI.

    python scripts/mutants.py                   # 20 mutants of each package; --seed 1: others
    python scripts/mutants.py --num 50 --only "storage: "
    python scripts/mutants.py --list --only "Buffer."   # shows mutants, runs nothing

A mutant is one small change of the code: another operator or comparison, a number or truth value, a
condition turned round, a `not` left out, None in place of a value returned. For each, the tests of
its package run (without the slow ones, up to the first failure) in a copy of the tree: those named
after the file or importing it first. Not mutated, since tests need not fix them, are: annotations,
decorators, class bases, `assert`, logging, raised errors, f-strings, `__repr__`, the tuned values
of constants in capitals, tables of numbers, and numbers above 2.

A mutant is identified by its package, function and line, so files may be moved or joined; the
sample of a seed changes only where the code does. Survivors must be in mutants_survivors.toml, each
with its reason. Ends with 1 if one is not, or if less than 90 % of the others of a package
are killed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import hashlib
import importlib.util
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SURVIVORS = Path(__file__).with_name("mutants_survivors.toml")


class Package(NamedTuple):
    """The folder of a package, or one file, and the paths of its tests."""

    path: str
    tests: tuple[str, ...]


PACKAGES = {
    "core": Package("agentgym_rl/core", ("tests/core", "tests/config")),
    "algo": Package("agentgym_rl/algo", ("tests/algo", "tests/contracts/test_extensions_terms.py")),
    "objectives": Package(
        "extensions/arl_objectives",
        (
            "tests/algo",
            "tests/rollout/test_curriculum.py",
            "tests/rollout/test_teachers.py",
            "tests/trainer/test_critic.py",
            "tests/trainer/test_teacher.py",
        ),
    ),
    "controller": Package(
        "agentgym_rl/controller", ("tests/controller", "tests/trainer/test_server.py")
    ),
    "rollout": Package("agentgym_rl/rollout", ("tests/rollout", "tests/test_public_parts.py")),
    "gateway/session": Package("agentgym_rl/gateway/session", ("tests/gateway",)),
    "storage": Package("agentgym_rl/storage", ("tests/storage", "tests/weights")),
    "run/loop": Package(
        "agentgym_rl/run/loop.py",
        ("tests/run/test_lost_ranks.py", "tests/controller/test_controller.py"),
    ),
    "run/record": Package(
        "agentgym_rl/run/record.py", ("tests/run/test_record.py", "tests/run/test_lost_ranks.py")
    ),
    "metric_warnings": Package(
        "extensions/arl_meters/metric_warnings.py", ("tests/run/test_metric_warnings.py",)
    ),
    "trainer/server": Package("agentgym_rl/trainer/server.py", ("tests/trainer/test_server.py",)),
    "engines/builds": Package("agentgym_rl/engines/builds.py", ("tests/engines/test_builds.py",)),
    "forks": Package("arl_isolation/forks.py", ("tests/sandboxes/test_forks.py",)),
}
"""The packages that are mutated."""

MIN_KILLED = 0.9
TEST_TIMEOUT_S = 60
"""The time limit of a test: a mutant that hangs is killed by it."""
TIMES_LONGER, LEAST_RUN_S = 5, 300
"""The time limit of the tests of one mutant, against what they took without it; past the limit, the
mutant counts as killed."""

COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
CALCULATED: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: (r"\*\*", "*"),
    ast.BitOr: (r"\|", "&"),
    ast.BitAnd: ("&", "|"),
}
TURNED_BY_OPERATOR = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
LARGEST_NUMBER = 2

SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "bases"}
SKIPPED_FUNCTIONS = {"__repr__", "__str__"}
SKIPPED_CALLS = {"cast", "isinstance", "issubclass", "print", "warn"}
LOGGERS = {"log", "logger", "logging"}


@dataclass(frozen=True)
class Mutant:
    """One change of a file: the bytes from `start` to `end` become `text`."""

    package: str
    path: str
    line: int
    start: int
    end: int
    text: str
    name: str
    """The package, the function, the line before and after: the same wherever the file is."""


# --- the mutants of a tree


def mutants_of(root: Path, package: str) -> list[Mutant]:
    """Return every mutant of a package, in a fixed order."""
    seen: Counter[str] = Counter()
    found: list[Mutant] = []
    path = root / PACKAGES[package].path
    for file in [path] if path.suffix else sorted(path.rglob("*.py")):
        source = file.read_bytes()
        edits = {(e.start, e.end, e.text): e for e in _Finder(source).edits}
        for edit in edits.values():
            before, after = _lines(source, edit)
            name = f"{package}: {edit.scope or 'module'}: {before}  ->  {after}"
            seen[name] += 1
            if seen[name] > 1:  # the same line once more in this function
                name += f"  #{seen[name]}"
            line = source.count(b"\n", 0, edit.start) + 1
            path = str(file.relative_to(root))
            found.append(Mutant(package, path, line, edit.start, edit.end, edit.text, name))
    return found


def sample(mutants: Sequence[Mutant], num: int, seed: int) -> list[Mutant]:
    """Return `num` mutants of each package that depend on `seed` and their own names, not on the
    others."""

    def rank(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed} {mutant.name}".encode()).digest()

    by_package: dict[str, list[Mutant]] = {}
    for mutant in sorted(mutants, key=rank):
        by_package.setdefault(mutant.package, []).append(mutant)
    return [mutant for found in by_package.values() for mutant in found[:num]]


@dataclass(frozen=True)
class _Edit:
    scope: str
    start: int
    end: int
    text: str


def _lines(source: bytes, edit: _Edit) -> tuple[str, str]:
    """Return the lines that an edit touches, as one line, before and after it."""
    first = source.rfind(b"\n", 0, edit.start) + 1
    last = source.find(b"\n", edit.end)
    last = len(source) if last < 0 else last
    head, tail = source[first : edit.start].decode(), source[edit.end : last].decode()
    before = head + source[edit.start : edit.end].decode() + tail
    return " ".join(before.split()), " ".join((head + edit.text + tail).split())


_NEGATION = re.compile(rb"(?:not|-)\s*")


class _Finder:
    """The edits of one source file."""

    def __init__(self, source: bytes) -> None:
        self.edits: list[_Edit] = []
        self._source = source
        self._starts = [0, *(match.end() for match in re.finditer(rb"\n", source))]
        self._walk(ast.parse(source), "")

    def _walk(self, node: ast.AST, scope: str) -> None:
        if _is_skipped(node):
            return
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            scope = f"{scope}.{node.name}" if scope else node.name
        self._mutate(node, scope)
        for field, value in ast.iter_fields(node):
            if field in SKIPPED_FIELDS or (field == "keywords" and isinstance(node, ast.ClassDef)):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self._walk(child, scope)

    def _mutate(self, node: ast.AST, scope: str) -> None:
        match node:
            case ast.Compare():
                sides = [node.left, *node.comparators]
                for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
                    self._replace(scope, left, right, *COMPARED[type(operator)])
            case ast.BinOp(op=operator) if type(operator) in CALCULATED:
                self._replace(scope, node.left, node.right, *CALCULATED[type(operator)])
            case ast.AugAssign(op=operator) if type(operator) in CALCULATED:
                self._replace(scope, node.target, node.value, *CALCULATED[type(operator)])
            case ast.BoolOp(values=values):
                swap = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                for left, right in pairwise(values):
                    self._replace(scope, left, right, *swap)
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                # Not up to the operand: what stands between them may be its opening parenthesis.
                start = self._at(node)
                if operator := _NEGATION.match(self._source, start):
                    self._add(scope, start, operator.end(), "")
            case ast.Constant(value=bool(value)):
                self._add(scope, *self._span(node), str(not value))
            case ast.Constant(value=int() | float() as value) if abs(value) <= LARGEST_NUMBER:
                self._add(scope, *self._span(node), str(value + 1))
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                self._add(scope, *self._span(value), "None")
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            self._turn(scope, node.test)
        if isinstance(node, ast.comprehension):
            for test in node.ifs:
                self._turn(scope, test)

    def _turn(self, scope: str, test: ast.expr) -> None:
        match test:
            case ast.Constant() | ast.UnaryOp(op=ast.Not()):
                return
            case ast.Compare(ops=[operator]) if isinstance(operator, TURNED_BY_OPERATOR):
                return
        start, end = self._span(test)
        self._add(scope, start, end, f"not ({self._source[start:end].decode()})")

    def _replace(self, scope: str, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """Replace the operator between two expressions, which may stand in parentheses."""
        start = self._span(left)[1]
        between = self._source[start : self._at(right)].decode()
        if match := re.search(rf"(?<![\w*/<>=!]){old}(?![\w*/<>])", between):
            begin = start + len(between[: match.start()].encode())
            self._add(scope, begin, begin + len(match[0]), new)

    def _add(self, scope: str, start: int, end: int, text: str) -> None:
        self.edits.append(_Edit(scope, start, end, text))

    def _at(self, node: ast.expr) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node), self._starts[node.end_lineno - 1] + node.end_col_offset


def _is_skipped(node: ast.AST) -> bool:
    match node:
        # Before Python 3.12, the parts of an f-string have wrong positions.
        case ast.Raise() | ast.JoinedStr() | ast.Assert():
            return True
        case ast.List(elts=[_, _, _, _, *_] as entries):  # a table of numbers
            return all(isinstance(entry, ast.Constant | ast.UnaryOp) for entry in entries)
        case ast.FunctionDef(name=name):
            return name in SKIPPED_FUNCTIONS
        case ast.Call(func=ast.Name(id=name)):
            return name in SKIPPED_CALLS
        case ast.Call(func=ast.Attribute(value=ast.Name(id=base), attr=name)):
            return base in LOGGERS or name in SKIPPED_CALLS
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in SKIPPED_CALLS
        case ast.BinOp(left=ast.JoinedStr()) | ast.BinOp(right=ast.JoinedStr()):
            return True
        case ast.keyword(arg="strict" | "repr"):  # of zip, of a field
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
            names = [found for found in ast.walk(target) if isinstance(found, ast.Name)]
            return bool(names) and all(name.id.isupper() for name in names)
    return False


# --- the tests of mutants


@dataclass(frozen=True)
class MutantResult:
    """The outcome of the tests of one mutant."""

    mutant: Mutant
    killed_by: str
    """The first test that failed, or another cause that ended the run; empty for a survivor."""


def judge(mutants: Sequence[Mutant], jobs: int) -> Iterator[MutantResult]:
    """Run the tests of each mutant, `jobs` at once, each in a copy of the tree of its own."""
    with tempfile.TemporaryDirectory(prefix="arl-mutants-") as folder:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(jobs):
            copies.put(_copied(Path(folder) / str(number)))

        limits: dict[str, float] = {}

        def unmutated(package: str) -> None:
            copy = copies.get()
            start = time.monotonic()
            if failed := _first_failure(copy, PACKAGES[package].tests, limit_s=3600):
                raise SystemExit(f"without a mutant, the tests of {package} must pass: {failed}")
            limits[package] = max(LEAST_RUN_S, TIMES_LONGER * (time.monotonic() - start))
            copies.put(copy)

        def one(mutant: Mutant) -> MutantResult:
            copy = copies.get()
            try:
                return MutantResult(mutant, _tested(copy, mutant, limits[mutant.package]))
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            try:
                list(pool.map(unmutated, sorted({mutant.package for mutant in mutants})))
                said = ", ".join(f"{package} {limit:.0f} s" for package, limit in limits.items())
                print(f"the tests pass without mutants; time limits: {said}", flush=True)
                for done in as_completed([pool.submit(one, mutant) for mutant in mutants]):
                    yield done.result()
            finally:
                pool.shutdown(cancel_futures=True)


def _copied(to: Path) -> Path:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for path in filter(None, listed.split("\0")):
        if (ROOT / path).is_file():
            (to / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, to / path)
    return to


def _tested(copy: Path, mutant: Mutant, limit_s: float) -> str:
    file = copy / mutant.path
    source = file.read_bytes()
    mutated = source[: mutant.start] + mutant.text.encode() + source[mutant.end :]
    try:
        _write(file, mutated)
        return _confirmed_failure(copy, *tests_for(copy, mutant), limit_s=limit_s)
    finally:
        _write(file, source)


def _write(file: Path, source: bytes) -> None:
    """Write a module, and forget its bytecode, which is looked up by second and size."""
    file.write_bytes(source)
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)


def tests_for(root: Path, mutant: Mutant) -> tuple[list[str], list[str]]:
    """Return the tests that name or import a mutant's file, which run first, and all of its
    package. Where none of the package imports it, tests of other packages that do come first."""
    module = mutant.path.removeprefix("extensions/").removesuffix(".py").replace("/", ".")
    names = _defined(root / mutant.path)
    everywhere = sorted((root / "tests").rglob("test_*.py"))
    tests = PACKAGES[mutant.package].tests
    files = [file for file in everywhere if str(file.relative_to(root)).startswith(tests)]
    named = [file for file in files if file.stem == f"test_{Path(mutant.path).stem}"]
    importing = [file for file in everywhere if _imports(file, module, names)]
    importing = [file for file in importing if file in files] or importing
    near = dict.fromkeys(str(file.relative_to(root)) for file in named + importing)
    return [*near], [*tests]


def _defined(file: Path) -> set[str]:
    """Return the names of the functions and classes of a module."""
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.parse(file.read_bytes()).body if isinstance(node, kinds)}


def _imports(test: Path, module: str, names: set[str]) -> bool:
    """Return whether a test imports a module, or one of its names from a package that it is in."""
    for imported, chosen in _imported(test):
        if imported == module:
            return True
        if module.startswith(f"{imported}.") and names & chosen:
            return True
    return False


@functools.cache
def _imported(test: Path) -> list[tuple[str, set[str]]]:
    """Return each module from which a test imports names, and these."""
    return [
        (node.module, {alias.name for alias in node.names})
        for node in ast.walk(ast.parse(test.read_bytes()))
        if isinstance(node, ast.ImportFrom) and node.module
    ]


def _confirmed_failure(
    copy: Path, near: Sequence[str], others: Sequence[str], *, limit_s: float
) -> str:
    """Return the first reproducible failure: a test unrelated to the mutant may fail for lack of
    time, and must fail once more by itself."""
    accidents: list[str] = []
    while failed := _first_failure(copy, [*near, *others], limit_s, leave_out=accidents):
        file, colons, _ = failed.partition("::")
        if not colons or file in near or _first_failure(copy, [failed], limit_s):
            break
        accidents.append(failed)
    return failed


def _first_failure(
    copy: Path, tests: Sequence[str], limit_s: float, *, leave_out: Sequence[str] = ()
) -> str:
    parts = [copy, copy / "envs", copy / "agents", copy / "sandboxes", copy / "extensions"]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, parts))}
    options = ["-q", "-x", "-p", "no:cacheprovider", f"--timeout={TEST_TIMEOUT_S}"]
    options += [f"--deselect={test}" for test in leave_out]
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, "-m", "not slow", *tests],
        cwd=copy,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = run.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"no end in {limit_s:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)  # with what its tests left
    if run.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", said, re.MULTILINE)
    last = said.strip().splitlines()[-1:] or [""]
    return failed[1] if failed else f"exit code {run.returncode}: {last[0]}"


# --- the report


def listed_survivors(file: Path = SURVIVORS) -> dict[str, str]:
    """Return the reason of each survivor that is accepted, by name."""
    return {
        entry["name"]: entry["reason"]
        for entry in tomllib.loads(file.read_text()).get("survivor", [])
    }


def report(verdicts: Sequence[MutantResult], listed: Sequence[str]) -> bool:
    """Print the numbers and the survivors; return whether the goal holds."""
    packages = Counter(verdict.mutant.package for verdict in verdicts)
    killed = Counter(verdict.mutant.package for verdict in verdicts if verdict.killed_by)
    for package, num in sorted(packages.items()):
        print(f"{package:16} {killed[package]:4} of {num:4} killed")
    print(f"{'all':16} {killed.total():4} of {len(verdicts):4} killed")
    survived = [verdict.mutant for verdict in verdicts if not verdict.killed_by]
    unlisted = [mutant for mutant in survived if mutant.name not in listed]
    for title, mutants in (
        (f"survived, as {SURVIVORS.name} says", [m for m in survived if m not in unlisted]),
        (f"SURVIVED: test it, or list it in {SURVIVORS.name} with a reason", unlisted),
    ):
        for mutant in sorted(mutants, key=lambda mutant: mutant.name):
            print(f"{title}:\n    {mutant.path}:{mutant.line}\n    {mutant.name}")
    accepted = Counter(mutant.package for mutant in survived if mutant not in unlisted)
    short = [
        name for name, num in packages.items() if killed[name] < MIN_KILLED * (num - accepted[name])
    ]
    if short:
        print(f"FAILED: of {', '.join(sorted(short))}, less than {MIN_KILLED:.0%} were killed")
    return not short and not unlisted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num", type=int, default=20, help="mutants of each package (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="which of them (default 0)")
    parser.add_argument(
        "--only",
        action="append",
        metavar="TEXT",
        help="only those with it in their names; repeatable",
    )
    parser.add_argument("--jobs", type=int, default=2, choices=(1, 2), help="tests at once")
    parser.add_argument("--list", action="store_true", help="show the mutants, run nothing")
    options = parser.parse_args()

    every = [mutant for package in PACKAGES for mutant in mutants_of(ROOT, package)]
    listed = listed_survivors()
    for name in listed.keys() - {mutant.name for mutant in every}:
        print(f"no mutant any more, remove it from {SURVIVORS.name}: {name}")
    texts = options.only or [""]
    named = [mutant for mutant in every if any(text in mutant.name for text in texts)]
    if not (chosen := sample(named, options.num, options.seed)):
        sys.exit(f"none of {len(every)} mutants has one of {texts} in its name")
    print(f"{len(chosen)} of {len(every)} mutants, seed {options.seed}", flush=True)
    if options.list:
        print("\n".join(mutant.name for mutant in chosen))
        return
    verdicts: list[MutantResult] = []
    start = time.monotonic()
    for verdict in judge(chosen, options.jobs):
        verdicts.append(verdict)
        outcome = f"killed by {verdict.killed_by}" if verdict.killed_by else "SURVIVED"
        passed = f"{len(verdicts)}/{len(chosen)} {time.monotonic() - start:.0f} s"
        print(f"{passed}  {verdict.mutant.name}\n    {outcome}", flush=True)
    sys.exit(not report(verdicts, list(listed)))


if __name__ == "__main__":
    main()
