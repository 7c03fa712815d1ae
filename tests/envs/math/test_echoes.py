"""What the question says is no answer, in whatever spelling; right answers are, in any order."""

import pytest
from arl_envs.math.judge import Quiz, judge_quickly
from arl_envs.math.question import read_question
from arl_envs.math.symbolic.canonical import canonical
from arl_envs.math.symbolic.literal import Undecided
from arl_envs.math.symbolic.parser import parse
from arl_envs.math.symbolic.remaining_work import form, operations

from tests.kit.cases import cases

SAME = [
    ("xx", "x^2"), ("x^{-1}", r"\frac{1}{x}"), ("12^{1/2}", r"\sqrt{12}"),
    ("x-(y-z)", "x-y+z"), ("(x+1)(1+x)", "(x+1)^2"), ("2^{-0.5}", r"\frac{1}{\sqrt{2}}"),
    (r"\frac{1}{2}\sqrt{2}", r"\frac{\sqrt{2}}{2}"), ("1x+0", "x"), ("-a/b", r"\frac{a}{-b}"),
    ("(x^2-1)(x-1)^{-1}", r"\frac{x^2-1}{x-1}"), ("x^1", "x"),
]  # fmt: skip
OTHER = [
    ("x^2x", "x^3"), ("2(x+1)", "2x+2"), (r"\sqrt{12}", r"2\sqrt{3}"), ("xyx^{-1}", "y"),
    (r"\sqrt{2}\sqrt{2}", "2"), ("2x+3x", "5x"), (r"\frac{2}{4}", r"\frac{1}{2}"),
]  # fmt: skip
ALIKE = [
    ("(x+2)(x+3)", "(x+3)(x-2)"), (r"\frac{x+6}{2}", r"\frac{x}{2}+3"),
    ("(5-x)(x+5)", "(x-5)(x+5)"),
    (r"\frac{3(1+\sqrt{5})}{2}", r"\frac{3}{2}+\frac{3\sqrt{5}}{2}"), ("2x", "-7x"),
]  # fmt: skip
UNLIKE = [
    ("(x+2)(x+3)", "x^2+5x+6"), ("x(x^2-1)", "x(x-1)(x+1)"), ("2(x+3)", "2x+6"),
    (r"\sqrt{12}", r"2\sqrt{3}"), (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"),
    (r"\sqrt{2}(1+\sqrt{2})", r"2+\sqrt{2}"),
]  # fmt: skip


@cases("one, other", SAME)
def test_spellings_of_one_expression(one: str, other: str) -> None:
    assert canonical(parse(one)) == canonical(parse(other))


@cases("one, other", OTHER)
def test_what_takes_work_is_another_expression(one: str, other: str) -> None:
    assert canonical(parse(one)) != canonical(parse(other))


@cases("one, other", ALIKE)
def test_expressions_that_look_alike(one: str, other: str) -> None:
    assert form(canonical(parse(one))) == form(canonical(parse(other)))


@cases("one, other", UNLIKE)
def test_expressions_that_look_different(one: str, other: str) -> None:
    assert form(canonical(parse(one))) != form(canonical(parse(other)))


@cases("text, count", [("x", 0), ("-3/4", 0), ("x^2+5x+6", 4), (r"\frac{x^2-1}{x-1}", 4)])
def test_operations_are_counted(text: str, count: int) -> None:
    assert operations(canonical(parse(text))) == count


@cases("question", ["Solve $3x+5=20$.", "Solve 3x+5=20 for x", r"\[3x+5=20\]"])
def test_equations_of_a_question_are_read(question: str) -> None:
    assert [claim.op for claim in read_question(question).claims] != []
    assert judge_quickly(r"\boxed{20=5+3x}", Quiz("x=5", question)).verdict == "wrong"
    assert judge_quickly(r"\boxed{5=x}", Quiz("x=5", question)).verdict == "ok"


def test_an_equation_that_is_not_in_the_question_may_be_said_in_any_form() -> None:
    with pytest.raises(Undecided):
        judge_quickly(
            r"\boxed{2x-y+3=0}", Quiz("y=2x+3", "Which line has slope 2 and meets (0,3)?")
        )


def test_a_right_answer_that_the_question_holds_asks_for_no_form() -> None:
    quiz = Quiz(r"\frac{1+\sqrt{5}}{2}", r"Let $a=\frac{1+\sqrt{5}}{2}$. Simplify $a^2-1$.")
    with pytest.raises(Undecided):
        judge_quickly(r"\boxed{\frac{\sqrt{5}}{2}+\frac{1}{2}}", quiz)
