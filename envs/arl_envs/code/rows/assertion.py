"""One assert statement, split into the arguments of a call and what it must return.

The syntax tree is read; nothing is executed. So the process that runs the call can be given the
arguments alone, and the comparison happens elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from agentgym_rl.data import RowRefused
from arl_envs.code.problem import CallTest

from .tolerance import rounding_of, tolerance_of
from .values import check_value

Names = Mapping[str, ast.expr]
"""What local variables stand for."""


def split_assert(test: ast.expr, entry: str, names: Names) -> CallTest:
    """What `assert test` says of the function `entry`.

    Understood are `f(x) == value` (either way round, `is` too), `f(x)`, `not f(x)`,
    `f(x) == pytest.approx(value)`, `math.isclose(f(x), value)` and `abs(f(x) - value) < tol`,
    where arguments and values are literals, or variables that stand for some.

    A bare `f(x)` asks for True, `not f(x)` for False. Floats may differ by rounding where the
    assertion says `==`, and else by what it says itself; `<` is read as `<=`.

    Raises:
        RowRefused: it says anything else, or allows so much that it says nothing.
    """
    test = resolve(test, names)
    match test:
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]):
            return _split_equality(left, right, entry, names)
        case ast.Compare(
            left=ast.Call(
                func=ast.Name(id="abs"),
                args=[ast.BinOp(left=left, op=ast.Sub(), right=right)],
                keywords=[],
            ),
            ops=[ast.Lt() | ast.LtE()],
            comparators=[bound],
        ):
            return _split_close(left, right, entry, names, absolute=number(bound, names))
        case ast.Call(func=function, args=[left, right]) if _is(function, "math", "isclose"):
            relative, absolute = _closeness(test, names, relative=1e-9, absolute=0.0)
            return _split_close(left, right, entry, names, relative=relative, absolute=absolute)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return CallTest(call_arguments(operand, entry, names), False)
    return CallTest(call_arguments(test, entry, names), True)


def _split_equality(left: ast.expr, right: ast.expr, entry: str, names: Names) -> CallTest:
    if is_call_of(resolve(right, names), entry) and not is_call_of(resolve(left, names), entry):
        left, right = right, left
    match resolve(right, names):
        case ast.Call(func=function, args=[value]) as call if _is(function, "pytest", "approx"):
            relative, absolute = _approximation(call, names)
            return _split_close(left, value, entry, names, relative=relative, absolute=absolute)
        case value:
            args, expected = call_arguments(left, entry, names), literal(value, names)
            return CallTest(args, expected, rounding_of(expected))


def _split_close(
    left: ast.expr,
    right: ast.expr,
    entry: str,
    names: Names,
    *,
    relative: float = 0.0,
    absolute: float = 0.0,
) -> CallTest:
    if is_call_of(resolve(right, names), entry):
        left, right = right, left
    args, expected = call_arguments(left, entry, names), number(right, names)
    tolerance = tolerance_of(expected, relative=relative, absolute=absolute)
    return CallTest(args, expected, tolerance)


def _approximation(call: ast.Call, names: Names) -> tuple[float, float]:
    """Of `pytest.approx`, where `abs` alone means that nothing relative is allowed."""
    alone = [keyword.arg for keyword in call.keywords] == ["abs"]
    return _closeness(call, names, relative=0.0 if alone else 1e-6, absolute=1e-12)


def _closeness(
    call: ast.Call, names: Names, *, relative: float, absolute: float
) -> tuple[float, float]:
    for keyword in call.keywords:
        if keyword.arg in ("rel", "rel_tol"):
            relative = number(keyword.value, names)
        elif keyword.arg in ("abs", "abs_tol"):
            absolute = number(keyword.value, names)
        else:
            raise RowRefused(f"an option this cannot split: {show(call)}")
    return relative, absolute


def call_arguments(node: ast.expr, entry: str, names: Names) -> list[Any]:
    """The arguments of the call `node` of `entry`.

    Raises:
        RowRefused: it is no such call, or has arguments that are no literals, or are named.
    """
    node = resolve(node, names)
    if not is_call_of(node, entry):
        raise RowRefused(f"not a call of {entry} and a literal: {show(node)}")
    assert isinstance(node, ast.Call)
    if node.keywords:
        raise RowRefused(f"arguments by name: {show(node)}")
    return [literal(arg, names) for arg in node.args]


def is_call_of(node: ast.expr, entry: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == entry


def literal(node: ast.expr, names: Names) -> Any:
    """The value of a literal, or of a variable that stands for one.

    Raises:
        RowRefused: it is neither, or a value that no test can hold.
    """
    node = resolve(node, names)
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise RowRefused(f"not a literal: {show(node)}") from error
    return check_value(value, show(node), from_json=False)


def resolve(node: ast.expr, names: Names) -> ast.expr:
    """`node`, or what the variable `node` stands for."""
    while isinstance(node, ast.Name) and node.id in names:
        node = names[node.id]
    return node


def number(node: ast.expr, names: Names) -> float:
    """The number that a literal is, or a variable that stands for one.

    Raises:
        RowRefused: it is none, or none that a float can hold.
    """
    value = literal(node, names)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RowRefused(f"not a number: {show(node)}")
    try:
        return float(value)
    except OverflowError as error:
        raise RowRefused(f"no float is as large as {show(node)}") from error


def _is(function: ast.expr, module: str, name: str) -> bool:
    match function:
        case ast.Name(id=found):
            return found == name
        case ast.Attribute(value=ast.Name(id=owner), attr=found):
            return (owner, found) == (module, name)
    return False


def show(node: ast.AST) -> str:
    """Some eighty characters of the source of `node`, for an error message."""
    try:
        text = " ".join(ast.unparse(node).split())
    except (RecursionError, ValueError):  # too deep, or a number too long to write
        text = type(node).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."
