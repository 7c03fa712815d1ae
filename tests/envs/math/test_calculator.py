"""The calculators: what they work out, what they refuse, and that nothing breaks them."""

import operator
from fractions import Fraction

import pytest
from arl_envs.math.calculator import (
    EvaluationError,
    as_decimal,
    evaluate,
    one_operation,
    whole_expression,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.cases import cases


@cases(
    "expression, result",
    [("3*4", "12"), (" 37 * 91 ", "3367"), ("5-9", "-4"), ("999999999+1", "1000000000")],
)
def test_one_operation(expression: str, result: str) -> None:
    assert one_operation(expression) == result


@cases(
    "expression",
    ["", "3", "3*4*5", "3/4", "-3*4", "3**4", "(3*4)", "1.5*2", "1234567890*1", "٣*٤", "x*1", "\0"],
)
def test_one_operation_refuses_anything_else(expression: str) -> None:
    with pytest.raises(EvaluationError, match=r"^one operation like 3\*4$"):
        one_operation(expression)


@cases(
    "expression, result",
    [
        ("2+3*4", "14"),
        ("(2+3)*4", "20"),
        ("2-3-4", "-5"),
        ("24/4/2", "3"),
        ("-(2+3)*-4", "20"),
        ("7/2", "7/2"),
        ("1/2+1/3", "5/6"),
        ("0.1+0.2", "0.3"),
        ("1.0/3", "1/3"),
        ("7.0/2", "3.5"),
        ("2.50*2", "5"),
        ("3*12.35", "37.05"),
        ("0.5-1", "-0.5"),
    ],
)
def test_whole_expressions(expression: str, result: str) -> None:
    assert whole_expression(expression) == result


@cases(
    "expression",
    [
        *("", " ", "1/0", "1/(2-2)", "(1", "1)", "1 2", "2**3", "2^3", "1e9", "abc", "1+", "*2"),
        *("()", ".5", "1.", "1,000", "٣+1", "1\n+1", "\ud800", "\0", "__import__('os')"),
        *("9" * 150, "*".join(["9" * 20] * 5), "(" * 90 + "1" + ")" * 90, "1+" * 10**6 + "1"),
    ],
)
def test_whole_expressions_refuse_the_rest(expression: str) -> None:
    with pytest.raises(EvaluationError):
        evaluate(expression)


_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@given(
    st.recursive(
        st.integers(0, 99).map(lambda n: (str(n), Fraction(n))),
        lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(
            lambda t: (f"({t[0][0]}{t[1]}{t[2][0]})", _OPERATORS[t[1]](t[0][1], t[2][1]))
        ),
        max_leaves=8,
    )
)
def test_agrees_with_pythons_fractions(pair: tuple[str, Fraction]) -> None:
    text, value = pair
    assert evaluate(text) == value


@given(st.fractions(max_denominator=5000))
def test_as_decimal_is_exact(value: Fraction) -> None:
    written = as_decimal(value)
    rest = value.denominator
    while rest % 2 == 0 or rest % 5 == 0:
        rest //= 2 if rest % 2 == 0 else 5
    assert (written is None) == (rest != 1)
    assert written is None or Fraction(written) == value


@given(st.text(max_size=60))
def test_arbitrary_text_never_crashes(text: str) -> None:
    for run in (one_operation, whole_expression):
        try:
            run(text)
        except EvaluationError:
            continue
