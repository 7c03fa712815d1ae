"""The split of a file of test code into calls and the values they must return; each assertion
becomes a test with arguments and the right value."""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Sequence
from itertools import chain
from typing import Any

from agentgym_rl.gym.data import RowRefused
from agentgym_rl.runtime import parse_python
from arl_envs.code.calculator.allowed import BUILTINS, NotComputable
from arl_envs.code.calculator.statements import Calculator
from arl_envs.code.calculator.values import ANSWER, ENTRY, Class, Open, approximate, show
from arl_envs.code.problem import EXACT, CallTest

from .cases import ROUNDING, WIDE, check_value, largest, rounding_of, tolerance_of
from .nodes import nodes_of


def test_of(claim: Open) -> CallTest:
    """Return the test of a claim that must hold.

    If the claim is equality with a value, floats may differ by rounding if the assertion has `==`,
    and else by its own tolerance (`pytest.approx(value)`, `math.isclose(x, value)`,
    `abs(x - value) < bound`; `<` is read as `<=`). Any other claim must be true in Python's sense.

    Raises:
        RowRefused: its tolerance is too wide to test anything, or no test can hold its values.
    """
    args = check_value(list(claim.args), "arguments", from_json=False)
    if claim.wanted is None:
        return CallTest(args, True, EXACT, view(claim, f"bool({ast.unparse(claim.node)})"))
    node, expected, relative, absolute = claim.wanted
    check_value(expected, "what is right", from_json=False)
    seen = (
        "" if isinstance(node, ast.Name) and node.id == ANSWER else view(claim, ast.unparse(node))
    )
    if absolute is None:
        return CallTest(args, expected, rounding_of(expected), seen)
    expected = _floats(expected)
    bounds = {"relative": _number(relative), "absolute": _number(absolute)}
    return CallTest(args, expected, tolerance_of(expected, **bounds), seen)


def test_of_pair(args: Any, expected: Any, absolute: Any) -> CallTest:
    """Return a test that allows `absolute` besides rounding, unless 0 would pass then.

    One `absolute` is meant for all tests of a row, also those for which it is too wide.

    Raises:
        RowRefused: the reasons of `test_of`.
    """
    args = check_value(list(args), "arguments", from_json=False)
    check_value(expected, "what is right", from_json=False)
    if not (absolute := _number(absolute)) or 0 < largest(expected) <= absolute < WIDE:
        return CallTest(args, expected, rounding_of(expected))
    allowed = tolerance_of(expected, relative=ROUNDING.relative, absolute=absolute)
    return CallTest(args, expected, allowed)


def view(claim: Open, last: str) -> str:
    """Return the source of the functions that a claim uses, and of the expression `last`."""
    return "\n".join([*claim.helpers.values(), last])


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RowRefused(f"not a number: {value!r:.60}")
    try:
        return float(value)
    except OverflowError as error:
        raise RowRefused(f"no float is as large as {value!r:.60}") from error


def _floats(value: Any) -> Any:
    """Return `value` with floats for whole numbers, since only floats have a tolerance."""
    if isinstance(value, list | tuple):
        return type(value)(map(_floats, value))
    if isinstance(value, dict):
        return {key: _floats(item) for key, item in value.items()}
    return _number(value)


MAX_SOURCE_BYTES = 4 << 20


def parse(source: str, what: str) -> ast.Module:
    """Parse `source` without executing it.

    Raises:
        RowRefused: `source` is no Python, or too long.
    """
    if len(source) > MAX_SOURCE_BYTES:
        raise RowRefused(f"{what}: {len(source)} characters, allowed {MAX_SOURCE_BYTES}")
    try:
        with warnings.catch_warnings():  # about the style of the test code
            warnings.simplefilter("ignore")
            return parse_python(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise RowRefused(f"{what} cannot be parsed: {error or type(error).__name__}") from error


def split_tests(
    source: str, entry: str, *, before: str = "", classes: Sequence[str] = ()
) -> list[CallTest]:
    """Return the tests of every assertion of `source`: top-level, in `check` and in `test*`.

    The parameter's name in `check(candidate)` is a name of the function, too. `before` is code
    whose functions the tests may use; `classes` are defined by the submission.

    Raises:
        RowRefused: there is no assertion, or one needs the submission to be computed.
    """
    splitter = _Splitter(entry, classes)
    try:
        splitter.prepare(parse(before, "prompt").body)
        splitter.computed(lambda: splitter.all_of(parse(source, "test").body))
        tests = [*splitter.pairs, *map(test_of, splitter.asserted)]
    except (NotComputable, TypeError) as error:
        raise RowRefused(str(error)) from error
    if not tests:
        raise RowRefused("no assertion")
    return tests


def called_function(source: str, *, reference: str = "") -> str:
    """Return the one function that `source` imports from the solution, or else tests in its
    assertions. Among several, it is the function that the solution in `reference` defines.

    Raises:
        RowRefused: there is not exactly one such function.
    """
    tree = parse(source, "test")
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "solution"
        for alias in node.names
    }
    found = imported or set(chain(*map(_callees, ast.walk(tree))))
    found = found & set(_defined(reference)) or found - _CHECKERS or found
    if len(found) != 1:
        raise RowRefused(f"cannot tell which function is tested: {sorted(found) or 'none'}")
    return found.pop()


_CHECKERS = {"isclose", "approx"} | set(BUILTINS)


def _callees(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.Assert):
        return []
    return [
        call.func.id
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    ]


def _defined(source: str) -> list[str]:
    try:
        body = parse(source, "the reference solution").body
    except RowRefused:  # it may be for another Python
        return []
    return [node.name for node in body if isinstance(node, ast.FunctionDef)]


class _Splitter(Calculator):
    """A calculator that runs test code and keeps its assertions."""

    def __init__(self, entry: str, classes: Sequence[str]) -> None:
        known = {name: Class(name) for name in classes}
        bare = {"approx": approximate, "isclose": math.isclose}  # imported or not
        super().__init__({**bare, **_NODES, **known, entry: ENTRY})
        self._entry = entry
        self._tests: list[ast.FunctionDef] = []
        self.pairs: list[CallTest] = []

    def prepare(self, statements: Sequence[ast.stmt]) -> None:
        """Define the names that can be computed; others are refused at their first use."""
        for node in statements:
            if isinstance(node, ast.FunctionDef | ast.Import | ast.ImportFrom | ast.Assign):
                try:
                    self.computed(lambda node=node: Calculator.statement(self, node))
                except NotComputable:
                    continue

    def all_of(self, statements: Sequence[ast.stmt]) -> None:
        """Run `statements`, then the tests that they define."""
        self.run(statements)
        for test in self._tests:
            if test.decorator_list:
                raise NotComputable(f"a decorated test: @{show(test.decorator_list[0])}")
            names = [arg.arg for arg in test.args.args]
            if test.name != "check" and names:
                raise NotComputable(f"a test with fixtures: {test.name}({', '.join(names)})")
            self._scopes.append(dict.fromkeys(names, ENTRY))
            self.run(test.body)
            self._scopes.pop()

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef(name=name) if name == "check" or name.startswith("test"):
                self._tests.append(node)
            case ast.Expr(value=ast.Call(func=ast.Name(id="check"))):
                pass
            case ast.Expr(
                value=ast.Call(
                    func=ast.Name(id="assertion"), args=[said, wanted, *rest], keywords=[]
                )
            ) if len(rest) < 2:
                self._pair(self.value(said), self.value(wanted), *map(self.value, rest))
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                pass  # code of a run as a program
            case ast.ClassDef() if not _has_tests(node):
                pass
            case ast.Assign(targets=[ast.Name(id=name)]) if name == self._entry:
                raise NotComputable(f"{name} is assigned to")
            case _:
                super().statement(node)

    def _call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id in _SAME_NODES and len(node.args) == 2:
            return self.value(ast.Compare(node.args[0], [ast.Eq()], node.args[1:]))
        return super()._call(node)

    def _pair(self, said: object, wanted: object, absolute: object = 0) -> None:
        """Keep the test of `assertion(f(*args), wanted, absolute)`, which is EvalPlus' notation."""
        if not isinstance(said, Open) or not isinstance(said.node, ast.Name):
            raise NotComputable("an assertion that is not about the returned value")
        self.pairs.append(test_of_pair(said.args, wanted, absolute))


_SAME_NODES = ("is_same_list", "is_same_tree")
_NODES = {
    "list_node": lambda values: nodes_of("ListNode", values),
    "tree_node": lambda values: nodes_of("TreeNode", values),
}
"""The functions by which rows of LeetCode write lists and trees."""


def _has_tests(node: ast.ClassDef) -> bool:
    return node.name.startswith("Test") or any(
        isinstance(inner, ast.FunctionDef) and inner.name.startswith("test") for inner in node.body
    )
