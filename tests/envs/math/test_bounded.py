"""Answers that would keep a careless reader busy for ever: all are judged in bounded time."""

import subprocess
import sys

import pytest
from arl_envs.math.judge import Quiz, judge_quickly

from tests.exhaustive import EXHAUSTIVE
from tests.kit.cases import cases

SIGNS = r"""abei05+-*/^_=<>!?.,;:'"|&%$#@~`()[]{}\ """ + "−π°é"
COMMANDS = [
    r"\frac", r"\sqrt", r"\degree", r"\left", r"\ ", r"\,", r"\text{", r"\text{ }", r"\log_",
    r"\in", r"1\frac{", r"1\frac", r"\pm", "/x", "^{", r"\{", "<answer>", "the ", "####", r"\sin",
    r"\begin{pmatrix}", r"\mathbb", "1,111", "$$", "-1", "x_", "1 1/",
]  # fmt: skip
DEADLINE_S = 120
"""For all runs of one kind together, which take some seconds: only a blow-up lasts longer."""
_JUDGE = """
import sys
from arl_envs.math.judge import Quiz, judge_quickly
from arl_envs.math.symbolic.literal import Undecided

for text in sys.stdin.read().split("\\x00"):
    for said in (f"\\\\boxed{{{text}}}", f"#### {text}"):
        try:
            judge_quickly(said, Quiz("y=2x", "Solve $y-2x=0$", "anchored"))
        except Undecided:
            pass
"""


def runs(pieces: list[str], size: int = 990) -> list[str]:
    """Each piece again and again, alone and between a letter and another sign."""
    repeated = [piece * (size // len(piece)) for piece in pieces]
    return repeated + [f"a {run}!" for run in repeated]


def judged_in_time(texts: list[str]) -> None:
    subprocess.run(
        [sys.executable, "-c", _JUDGE],
        input="\0".join(texts), text=True, check=True, timeout=DEADLINE_S,
    )  # fmt: skip


@pytest.mark.slow
def test_runs_of_one_sign_are_judged() -> None:
    judged_in_time(runs([*SIGNS, *COMMANDS]))


@pytest.mark.slow
def test_runs_of_two_signs_are_judged() -> None:
    """Every fifth pair, with each sign in many of them; every pair with ARL_EXHAUSTIVE=1."""
    pairs = [one + other for one in SIGNS for other in SIGNS if one != other]
    judged_in_time(runs(pairs[:: 1 if EXHAUSTIVE else 5], 300))


@cases("run", ["-", ".'", "-b", " ", "~", r"\left "], ids=range(6))
@pytest.mark.timeout(60)
def test_words_and_spaces_are_judged_at_once(run: str) -> None:
    for text in (f"a{run * (900 // len(run))}!", f"5{run * (900 // len(run))}b"):
        assert judge_quickly(rf"\boxed{{{text}}}", Quiz("5")).verdict in ("wrong", "unparseable")


NESTS = ["x" + "!" * 900, "1" + "/x" * 400, r"\frac" * 190, "x^" + "-" * 900, r"\sqrt" * 190]
NESTS += [r"1\frac{" * 60 + "1" + "}{2}" * 60, "x" + r"\degree " * 120, "1" + r"\frac1" * 150]


@cases("text", NESTS, ids=range(len(NESTS)))
@pytest.mark.timeout(60)
def test_operators_one_upon_another_are_too_deep(text: str) -> None:
    found = judge_quickly(rf"\boxed{{{text}}}", Quiz("x^2", "Compute $x!$"))
    assert found.verdict == "unparseable"
