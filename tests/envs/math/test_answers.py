r"""What counts as a right answer, and what never does."""

import pytest
from arl_envs.math.answers import MathVerdict, last_boxed, read_number
from arl_envs.math.judge import judge_number

from tests.kit.cases import cases

BOXES = [
    (r"\boxed{7}", "7"),
    (r"\boxed{7} wait \boxed{5}", "5"),
    (r"\boxed{\boxed{7}}", "7"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{a\}b}", r"a\}b"),
    (r"\boxed{}", ""),
    (r"\boxed{7", None),
    (r"\boxed{5} and then \boxed{7", None),
    (r"boxed{7}", None),
    (r"\boxed 7", None),
    ("7", None),
    ("", None),
]


@cases("text, inside", BOXES)
def test_last_boxed(text: str, inside: str | None) -> None:
    assert last_boxed(text) == inside


RIGHT = [
    (r"\boxed{3367}", "3367", "integer"),
    (r"\boxed{ 3367 }", "3367", "integer"),
    (r"\boxed{3,367}", "3367", "integer"),
    (r"\boxed{3{,}367}", "3367", "integer"),
    (r"\boxed{-12}", "-12", "integer"),
    (r"\boxed{007}", "7", "integer"),
    (r"no, \boxed{1}. It is \boxed{2}.", "2", "integer"),
    (r"\boxed{12.50}", "12.5", "decimal"),
    (r"\boxed{1,234.5}", "1234.5", "decimal"),
    (r"\boxed{12}", "12", "decimal"),
    (r"\boxed{-3/4}", "-3/4", "fraction"),
    (r"\boxed{\frac{3}{4}}", "3/4", "fraction"),
    (r"\boxed{-\dfrac{3}{4}}", "-3/4", "fraction"),
]


@cases("text, answer, kind", RIGHT)
def test_right_answers(text: str, answer: str, kind) -> None:
    assert judge_number(text, answer=answer, kind=kind) is MathVerdict.OK


WRONG = [
    (r"\boxed{3368}", "3367", "integer"),
    (r"\boxed{3367} or rather \boxed{1}", "3367", "integer"),
    (r"\boxed{-12}", "12", "integer"),
    (r"\boxed{12.51}", "12.5", "decimal"),
    (r"\boxed{831.99999}", "832", "decimal"),
    (r"\boxed{4/3}", "3/4", "fraction"),
]


@cases("text, answer, kind", WRONG)
def test_wrong_numbers(text: str, answer: str, kind) -> None:
    assert judge_number(text, answer=answer, kind=kind) is MathVerdict.WRONG


HACKS = [
    *((box, "3367", "integer") for box in (r"37*91", r"37 \cdot 91", r"37\times91", r"3366+1")),
    *((box, "55", "integer") for box in (r"\sum_{i=1}^{10} i", "5!", "5^{2}+30", "55 pens")),
    *((box, "12", "integer") for box in ("12=12", "12.0", "1.2e1", "12, 13", "{12}", "$12$")),
    *((box, "1234", "integer") for box in ("12,34", "1,23,4", ",1234", "1 234", "1234,", "+1234")),
    *((box, "12", "integer") for box in ("١٢", "twelve", "--12", "- 12", "0xc", "1_2", "12\n")),
    *((box, "12.5", "decimal") for box in ("25/2", "12.5%", ".5", "12.", "12.5.0", "1250e-2")),
    *((box, "3/4", "fraction") for box in ("6/8", "0.75", "3/4/1", "1/2+1/4", "--3/4", "3/-4")),
    *((box, "3/4", "fraction") for box in (r"\frac34", r"\frac{3}{4}1", "75%", "3:4", "3/04x")),
    ("9" * 5000, "9", "integer"),
]


@cases("box, answer, kind", HACKS)
def test_what_is_not_a_number_is_unparseable(box: str, answer: str, kind) -> None:
    assert judge_number(rf"\boxed{{{box}}}", answer=answer, kind=kind) is MathVerdict.UNPARSEABLE


def test_a_number_outside_a_box_does_not_count() -> None:
    assert judge_number("The answer is 12.", answer="12", kind="integer") is MathVerdict.UNPARSEABLE


def test_a_task_without_a_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="no integer"):
        judge_number(r"\boxed{1}", answer="1+0", kind="integer")


@pytest.mark.parametrize("text", ["\\boxed{" * 200_000, "{" * 10**6, "\\boxed{" + "\\" * 10**6])
@pytest.mark.timeout(60)
def test_long_hostile_text_is_cheap(text: str) -> None:
    assert judge_number(text, answer="1", kind="integer") is MathVerdict.UNPARSEABLE


def test_fractions_are_read_in_lowest_terms_only() -> None:
    assert read_number("6/2", "fraction") is None
    assert read_number("3/1", "fraction") is None
    assert read_number("1/0", "fraction") is None
