"""A file of test code, split into calls and what they must return."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from itertools import chain

from agentgym_rl.data import RowRefused
from arl_envs.code.problem import CallTest, Tolerance

from .assertion import call_arguments, is_call_of, literal, number, resolve, show, split_assert
from .cases import check_pairs
from .tolerance import ROUNDING, rounding_of, tolerance_of

MAX_SOURCE_BYTES = 4 << 20

_HARMLESS = (ast.Import, ast.ImportFrom, ast.Pass)


def parse(source: str, what: str) -> ast.Module:
    """
    Raises:
        RowRefused: it is no Python, or too long.
    """
    if len(source) > MAX_SOURCE_BYTES:
        raise RowRefused(f"{what}: {len(source)} characters, allowed {MAX_SOURCE_BYTES}")
    try:
        with warnings.catch_warnings():  # of how it is written; none of our business
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise RowRefused(f"{what} cannot be parsed: {error or type(error).__name__}") from error


def split_tests(source: str, entry: str) -> list[CallTest]:
    """Every assertion of `source`: at the top, in `check`, and in `test` functions.

    In `check(candidate)`, the name of the parameter is that of the function, too.

    Raises:
        RowRefused: there is none, or a statement that would have to be executed.
    """
    tests = _Splitter(entry).block(parse(source, "test").body)
    if not tests:
        raise RowRefused("no assertion")
    return tests


def called_function(source: str) -> str:
    """The one function that `source` imports from the solution, or else asserts things of.

    Raises:
        RowRefused: there is not exactly one.
    """
    tree = parse(source, "test")
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "solution"
        for alias in node.names
    }
    found = imported or set(chain(*map(_callees, ast.walk(tree))))
    if len(found) != 1:
        raise RowRefused(f"cannot tell which function is tested: {sorted(found) or 'none'}")
    return found.pop()


_CHECKERS = {"abs", "isclose", "approx", "set", "sorted", "list", "tuple", "len", "round", "float"}


def _callees(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.Assert):
        return []
    return [
        call.func.id
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id not in _CHECKERS
    ]


class _Splitter:
    """Walks the statements of one scope, remembering what variables stand for."""

    def __init__(self, entry: str, names: dict[str, ast.expr] | None = None) -> None:
        self._entry = entry
        self._names = dict(names or {})

    def block(self, statements: Sequence[ast.stmt]) -> list[CallTest]:
        return list(chain.from_iterable(map(self._statement, statements)))

    def _statement(self, node: ast.stmt) -> list[CallTest]:
        match node:
            case ast.Assert(test=ast.Constant(value=True)):
                pass
            case ast.Assert(test=test):
                return [split_assert(test, self._entry, self._names)]
            case ast.FunctionDef():
                return self._function(node)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._bind(name, value)
            case ast.For():
                return self._loop(node)
            case ast.ClassDef() if not _has_tests(node):
                pass
            case ast.Expr(value=ast.Constant()):
                pass
            case ast.Expr(value=ast.Call(func=ast.Name(id="check"))):
                pass
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                pass  # what a run as a program would do
            case _ if isinstance(node, _HARMLESS):
                pass
            case _:
                raise RowRefused(f"a statement that would have to be executed: {show(node)}")
        return []

    def _function(self, node: ast.FunctionDef) -> list[CallTest]:
        """A test, or the definition of a helper; one that is used is refused where it is used."""
        if node.name != "check" and not node.name.startswith("test"):
            return []
        if node.decorator_list:
            raise RowRefused(f"a decorated test: @{show(node.decorator_list[0])}")
        parameters = [arg.arg for arg in node.args.args]
        if node.name != "check" and parameters:
            raise RowRefused(f"a test with fixtures: {node.name}({', '.join(parameters)})")
        entry = parameters[0] if parameters else self._entry
        return _Splitter(entry, self._names).block(node.body)

    def _bind(self, name: str, value: ast.expr) -> None:
        if name == self._entry:
            raise RowRefused(f"{name} is assigned to")
        value = resolve(value, self._names)
        if is_call_of(value, self._entry):
            call_arguments(value, self._entry, self._names)
            value = self._frozen(value)
        else:
            literal(value, self._names)
        self._names[name] = value

    def _frozen(self, call: ast.expr) -> ast.expr:
        """`call` with its variables replaced: they may stand for something else later."""
        assert isinstance(call, ast.Call)
        return ast.Call(call.func, [resolve(arg, self._names) for arg in call.args], [])

    def _loop(self, node: ast.For) -> list[CallTest]:
        """`for inp, exp in zip(inputs, results): assertion(f(*inp), exp, tolerance)`, no other."""
        target, source = node.target, node.iter
        match target, source:
            case (
                ast.Tuple(elts=[_, inner]),
                ast.Call(func=ast.Name(id="enumerate"), args=[zipped]),
            ):
                target, source = inner, zipped
        match target, source, node.body, node.orelse:
            case (
                ast.Tuple(elts=[ast.Name(id=given), ast.Name(id=wanted)]),
                ast.Call(func=ast.Name(id="zip"), args=[inputs, results]),
                [
                    ast.Expr(
                        value=ast.Call(
                            func=ast.Name(id="assertion"),
                            args=[
                                ast.Call(
                                    func=ast.Name(id=function),
                                    args=[ast.Starred(value=ast.Name(id=spread))],
                                    keywords=[],
                                ),
                                ast.Name(id=compared),
                                *rest,
                            ],
                            keywords=[],
                        )
                    )
                ],
                [],
            ) if (function, spread, compared) == (self._entry, given, wanted) and len(rest) < 2:
                absolute = number(rest[0], self._names) if rest else 0.0
                return self._pairs(inputs, results, absolute)
        raise RowRefused(f"a loop that would have to be executed: {show(node)}")

    def _pairs(self, inputs: ast.expr, results: ast.expr, absolute: float) -> list[CallTest]:
        """`absolute` is allowed beside rounding; 0: rounding alone."""
        given, wanted = literal(inputs, self._names), literal(results, self._names)
        pairs = check_pairs(given, wanted)
        if not all(isinstance(args, list | tuple) for args in given):
            raise RowRefused("inputs: expected a list of arguments for each test")
        return [CallTest(list(args), wanted, _allowed(wanted, absolute)) for args, wanted in pairs]


def _allowed(wanted: object, absolute: float) -> Tolerance:
    if not absolute:
        return rounding_of(wanted)
    return tolerance_of(wanted, relative=ROUNDING.relative, absolute=absolute)


def _has_tests(node: ast.ClassDef) -> bool:
    return node.name.startswith("Test") or any(
        isinstance(inner, ast.FunctionDef) and inner.name.startswith("test") for inner in node.body
    )
