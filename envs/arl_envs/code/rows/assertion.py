"""The step from an assertion about one call to a test: the arguments and the right value."""

from __future__ import annotations

import ast
from typing import Any

from agentgym_rl.gym.data import RowRefused
from arl_envs.code.calculator.values import ANSWER, Open
from arl_envs.code.problem import EXACT, CallTest

from .tolerance import ROUNDING, rounding_of, tolerance_of
from .values import check_value


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
    """Return a test that allows `absolute` besides rounding; 0: rounding alone.

    Raises:
        RowRefused: the reasons of `test_of`.
    """
    args = check_value(list(args), "arguments", from_json=False)
    check_value(expected, "what is right", from_json=False)
    if not (absolute := _number(absolute)):
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
