"""Units: which there are, which are variables, and which a question asks for."""

from arl_envs.math.symbolic.requested_units import may_add_unit, may_omit_unit, wants_unit
from arl_envs.math.symbolic.units import canonical, marked, split_unit

from tests.kit.cases import cases


@cases(
    "text, value, unit",
    [
        (r"5 \text{ cm}", "5", "cm"),
        (r"9\pi\text{ square units}", r"9\pi", "unit^2"),
        (r"12\pi \text{ cm}^2", r"12\pi", "cm^2"),
        (r"\infty\text{ m}", r"\infty", "m"),
        (r"\frac{1}{2}\text{ hours}", r"\frac{1}{2}", "hour"),
        (r"\$18", "18", "dollar"),
        (r"10%", "10", "percent"),
        (r"2\sqrt\text{ cm}", r"2\sqrt\text{ cm}", ""),
        (r"2\cdot\text{ cm}", r"2\cdot\text{ cm}", ""),
        ("3xy", "3xy", ""),
        ("5cm", "5cm", ""),
        (r"2\text{e}", r"2\text{e}", ""),
    ],
)
def test_a_unit_is_what_is_written_as_text(text: str, value: str, unit: str) -> None:
    assert split_unit(text) == (value, unit)


@cases(
    "said, unit",
    [
        ("miles per hour", "mile/hour"),
        ("mph", "mile/hour"),
        ("km/h", "km/hour"),
        ("sq. ft", "foot^2"),
        ("cubic inches", "inch^3"),
        ("P.M.", "pm"),
        ("boxes", "box"),
        ("clips in total", "clip"),
        ("more people", "person"),
    ],
)
def test_one_spelling_of_a_unit(said: str, unit: str) -> None:
    assert canonical(said) == unit


@cases("text", ["3xy", "2h", "6abc", "12m", "5km", "x^2+3ab", "3x cm", "7 apples", "2 m g"])
def test_in_doubt_letters_are_variables(text: str) -> None:
    assert marked(text) == text


@cases(
    "text, question, gold, read",
    [
        ("5 cm", "", "", r"5\text{ cm}"),
        ("5cm", "", r"5\text{ cm}", r"5\text{ cm}"),
        ("5 hours, 3 hours", "", "", r"5\text{ hours}, 3\text{ hours}"),
        ("12 m", "A rope of 20 meters is cut.", "", r"12\text{ m}"),
        ("12 m", "A rope of $m$ meters is cut.", "", "12 m"),
        ("7 apples", "How many apples are left?", "", r"7\text{ apples}"),
        ("7 apples", "", "7", r"7\text{ apples}"),
        ("7 xyz", "", "7", "7 xyz"),
        ("7 apples", "", "7x", "7 apples"),
        ("5km", "Boxes of $k$ pens, $m$ of them, over 5 km.", "", "5km"),
        ("3:30 p.m.", "", "", r"3:30\text{ p.m.}"),
    ],
)
def test_bare_units_are_told_by_the_question(
    text: str, question: str, gold: str, read: str
) -> None:
    assert marked(text, question, gold) == read


@cases(
    "question, asked, not_asked",
    [
        ("How many miles does John's car drive in 3 hours?", "mile", "hour"),
        ("How many hours is 120 minutes?", "hour", "minute"),
        ("I was second. How many seconds did I take?", "second", "inch"),
        ("It is 10 percent off $20. How many dollars is it?", "dollar", "percent"),
        ("Eggs are $2 each. How much did she recently make?", "dollar", "cent"),
        ("Eggs are $2 each. How many eggs are there?", "egg", "dollar"),
        ("How many 20 dollar bills are there?", "bill", "dollar"),
        ("In a triangle, what is the angle at $A$?", "degree", "unit"),
        ("In a triangle with a right angle, what is its longest side?", "unit", "degree"),
        ("A room is 3 feet by 4 feet. What is its area?", "foot^2", "foot"),
        ("If $5x=25$, how many solutions are there?", "solution", "dollar"),
        ("There are 12 students. 5 go home. How many stay?", "student", "home"),
    ],
)
def test_what_a_question_asks_for(question: str, asked: str, not_asked: str) -> None:
    assert wants_unit(question, asked)
    assert not wants_unit(question, not_asked)


def test_a_question_that_asks_for_nothing_else_leaves_units_open() -> None:
    clips = "She sold clips to 48 friends. How many did she sell altogether?"
    open_ = [("", "dollar"), ("", "clip"), ("What is the total?", "euro"), (clips, "clip")]
    assert [case for case in open_ if not may_add_unit(*case)] == []
    taken = [
        ("What is the total?", "percent"),
        ("What is the total?", "dozen clips"),
        ("How many eggs are there?", "duck"),
        ("If $5x=25$, what is $x$?", "dollar"),
        ("What is 37 * 91?", "apple"),
        ("It costs $5. How much is it?", "euro"),
        ("How far is it from home?", "apple"),
        ("A rope of 5 meters is cut. What is left?", "cm"),
    ]
    assert [case for case in taken if may_add_unit(*case)] == []


def test_percents_and_dozens_do_not_go_without_saying() -> None:
    assert may_omit_unit("", "cm")
    assert not may_omit_unit("", "percent")
    assert not may_omit_unit("How many people live there?", "million")
    assert may_omit_unit("What percent of them passed?", "percent")
