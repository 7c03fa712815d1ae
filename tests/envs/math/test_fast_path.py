"""Numbers are judged without math-verify; it would say the same."""

from fractions import Fraction

import pytest
from arl_envs.math.judge import Quiz, judge_quickly
from arl_envs.math.symbolic.literal import Undecided, settle
from arl_envs.math.symbolic.reading import read
from hypothesis import given, settings
from hypothesis import strategies as st
from math_verify import parse, verify

SIGNS = r"\{}()[]^_$%|!,.;:=<>+-*/ 0123456789abcdefinoqrstxyz" + "−π°"

whole = st.integers(-(10**7), 10**7)
fractions = st.fractions(max_denominator=500)
decimals = st.decimals(-(10**5), 10**5, allow_nan=False, allow_infinity=False, places=3)
spelled = st.one_of(
    whole.map(str),
    whole.map(lambda number: f"{number:,}"),
    decimals.map(lambda number: f"{number:f}"),
    fractions.map(lambda number: rf"\frac{{{number.numerator}}}{{{number.denominator}}}"),
)


def theirs(gold: str, answer: str) -> bool:
    """math-verify's word, with its time limits off: they are signals."""
    a, b = (parse(f"${text}$", parsing_timeout=None) for text in (gold, answer))  # pyright: ignore[reportArgumentType]
    return verify(a, b, timeout_seconds=None)


@settings(max_examples=150, deadline=None)
@given(spelled, spelled)
def test_any_two_numbers(gold: str, answer: str) -> None:
    assert not settle(read(gold), read(answer)) or theirs(gold, answer)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(fractions)
def test_one_number_in_two_spellings(number: Fraction) -> None:
    latex = rf"\frac{{{number.numerator}}}{{{number.denominator}}}"
    plain = str(number)
    assert settle(read(latex), read(plain))
    assert theirs(latex, plain)


@settings(max_examples=100, deadline=None)
@given(whole, st.integers(1, 9))
def test_numbers_side_by_side_differ(number: int, step: int) -> None:
    assert settle(read(str(number)), read(f"{number:,}"))
    assert not settle(read(str(number)), read(str(number + step)))
    assert not theirs(str(number), str(number + step))


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=SIGNS, max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for gold in ("5", r"x^2+\sqrt{2}"):
        try:
            verdict = judge_quickly(rf"\boxed{{{text}}}", Quiz(gold)).verdict
            assert verdict in ("ok", "wrong", "unparseable")
        except Undecided:
            assert gold != "5"
