"""Congruences, inverse functions, sets, and commands that begin as others do."""

import re

import pytest
from arl_envs.math.judge import Quiz, judge_quickly
from arl_envs.math.symbolic.algebra import compare
from arl_envs.math.symbolic.expression import Unreadable
from arl_envs.math.symbolic.literal import Undecided
from arl_envs.math.symbolic.notation import spelled
from arl_envs.math.symbolic.reading import read

from tests.kit.cases import cases

MODULO_7 = "Find $x$ modulo 7."
SOLVED, TWO = r"x \equiv 3 \pmod{7}", r"x \equiv 1, 5 \pmod 6"


def verdict(gold: str, said: str, question: str = "") -> str:
    try:
        return judge_quickly(rf"\boxed{{{said}}}", Quiz(gold, question)).verdict
    except Undecided as undecided:
        return compare(gold, str(undecided), question)


@cases(
    "gold, said, right",
    [
        *(("3", said, True) for said in (
            r"3 \pmod 7", r"3 \bmod 7", r"3 \mod{7}", "3 mod 7", "3 (mod 7)", r"3\ (\bmod{7})",
            r"3 \text{ (mod 7)}", r"3 \text{ mod } 7", r"3 \operatorname{mod} 7", "3 modulo 7",
            r"x \equiv 3 \pod 7", "x ≡ 3 (mod 7)", r"2^{10}+1 \equiv 3 \pmod 7",
        )),
        *((SOLVED, said, True) for said in ("3", "3 (mod 7)", r"x \equiv -4 \pmod 7", SOLVED)),
        (r"3 \pmod 7", "3", True),
        (TWO, r"x \equiv 5 \pmod 6 \text{ or } x \equiv 1 \pmod 6", True),
        (TWO, r"x \equiv \pm 1 \pmod 6", True),
        *((TWO, said, True) for said in ("1, 5", "5, 1", r"\{1, 5\}", r"x = 1, 5", r"\pm 1")),
        *((TWO, said, False) for said in ("1", "1, 4", "1, 5, 3", "1, 5, 7", "(1, 5)")),
        ("1, 5", TWO.replace("6", "7"), True),
        ("1, 5", TWO, False),
        (r"a \equiv b \pmod{m}", r"a \equiv b \pmod m", True),
        (r"x\equiv 1 \pmod 2, y \equiv 2 \pmod 3", r"y\equiv 2 \pmod 3, x\equiv 1 \pmod 2", True),
        ("3", r"10 \pmod 7", False),
        ("3", r"3 \pmod 5", False),
        ("3", r"3 \pmod{14}", False),
        ("3", r"x \equiv 4 \pmod 7", False),
        (SOLVED, r"x \equiv 3 \pmod{14}", False),
        (SOLVED, r"x \equiv 4 \pmod 7", False),
        (SOLVED, r"y \equiv 3 \pmod 7", False),
        (SOLVED, "10", False),
        (SOLVED, r"3, 4 \pmod 7", False),
        (TWO, r"x \equiv 1 \pmod 6", False),
        (r"67 \pmod{100}", r"37 \cdot 91 \pmod{100}", False),
        (r"67 \pmod{100}", r"3367 \pmod{100}", False),
    ],
)  # fmt: skip
def test_congruences(gold: str, said: str, right: bool) -> None:
    assert (verdict(gold, said, MODULO_7) == "ok") == right


def test_a_modulus_nobody_asked_for_is_no_answer() -> None:
    assert verdict("3", r"3 \pmod 7", "What is $1+2$?") == "wrong"


@cases("text", [r"2x \equiv 6 \pmod 7", r"x \equiv 3", r"3 \pmod 7 + 1", r"1 \pmod 2 + 3 \pmod 5"])
def test_congruences_that_are_not_understood(text: str) -> None:
    with pytest.raises(Unreadable):
        read(text)


@cases(
    "gold, said, right",
    [
        (r"\sin^{-1}(\frac13)", r"\arcsin \frac13", True),
        (r"\arctan 2", r"\tan^{-1} 2", True),
        (r"\arctan 2", "atan(2)", True),
        (r"\operatorname{arctg} 2", r"\arctan 2", True),
        (r"\cos^{-1} x", r"\arccos x", True),
        (r"\arctan \frac12", r"\cot^{-1} 2", True),
        (r"\sec^{-1} 3", r"\arccos \frac13", True),
        (r"\sinh^{-1} 2", r"\ln(2+\sqrt5)", True),
        (r"\coth x", r"\frac{\cosh x}{\sinh x}", True),
        (r"\operatorname{tg} x", r"\tan x", True),
        (r"\sin^{-1} \frac13", r"\frac{1}{\sin \frac13}", False),
        (r"\cos^{-1} x", r"\sec x", False),
        (r"\cosh x", r"\cos x", False),
        (r"\coth x", r"\cot x", False),
        (r"\frac{\pi}{6}", r"\sin^{-1} \frac12", False),  # it is work
    ],
)
def test_inverse_and_hyperbolic_functions(gold: str, said: str, right: bool) -> None:
    assert (verdict(gold, said) == "ok") == right


@cases(
    "gold, said, right",
    [
        (r"\{1,2\}", r"\{1,2,2\}", True),
        ("1,2", r"\{2,1,1\}", True),
        (r"\{1,\frac12\}", r"\{0.5,1,\frac12\}", True),
        (r"[0,1]\cup\{3\}", r"[0,1]\cup\{3,3\}", True),
        (r"\{1,2\}", "1,2,2", False),
        (r"\{1,2,2\}", r"\{1,2\}", False),  # a multiset
        ("1,2,2", "1,2", False),
        ("1,2,2", r"\{1,2\}", False),
        (r"\{1,2\}", r"\{1,1\}", False),
        (r"\{1,2\}", r"\{1,2,3\}", False),
    ],
)
def test_a_set_has_each_member_once(gold: str, said: str, right: bool) -> None:
    assert (verdict(gold, said) == "ok") == right


COMMANDS = r"""
    pm mp le ge ne leq geq neq lt gt in to cup cap cdot times div frac sqrt sin cos tan cot ln log
    exp pi infty left right text vert mid circ degree angle equiv pmod bmod mod emptyset binom
    lfloor langle overline bar vec hat not setminus theta phi quad dfrac displaystyle R
"""


@cases("form", [r"3 {} 5", r"3 {}{{5}}", r"x {} 5", r"x = {} 3", r"{}(3)", r"{} 3", r"3^{}"])
def test_a_longer_command_is_not_read_as_the_one_it_begins_with(form: str) -> None:
    for name in COMMANDS.split():
        for longer in (f"{name}zz", f"{name}Z"):
            text = form.replace("{}", f"\\{longer}", 1).replace("{{", "{").replace("}}", "}")
            assert re.search(rf"\\{longer}(?![A-Za-z])", spelled(text)), text
            try:
                answer = read(text)
            except Unreadable:
                continue
            assert longer in repr(answer), (text, answer)
