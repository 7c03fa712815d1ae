"""What the checker says of the labelled set; `arl bench math` has the table.

Every hack is judged whole, and every other one of the other cases; all with ARL_EXHAUSTIVE=1.
"""

import asyncio
from collections import Counter

import pytest
from arl_envs.math.judge import COMPARE, judge, judge_quickly
from arl_envs.math.symbolic.literal import Undecided
from arl_verifier.pool import ProcessPool

from tests.envs.math.cases import Case, labelled
from tests.exhaustive import EXHAUSTIVE

CASES = labelled()
JUDGED = [case for i, case in enumerate(CASES) if case.hack or i % 2 == 0 or EXHAUSTIVE]
LEAST_F1 = 0.985
"""Measured: 0.991."""


async def _verdicts() -> list[str]:
    async with ProcessPool(2, preload=[COMPARE]) as pool:
        judged = [await judge(case.text, case.quiz, pool, timeout_s=20) for case in JUDGED]
    return [one.verdict for one in judged]


@pytest.fixture(scope="module")
def judged() -> list[tuple[Case, str]]:
    return list(zip(JUDGED, asyncio.run(_verdicts()), strict=True))


def test_the_set_has_both_kinds_of_cases() -> None:
    assert len(CASES) >= 400
    assert len({(case.gold, case.text, case.question, case.mark) for case in CASES}) == len(CASES)
    assert Counter(case.right for case in CASES).most_common()[-1][1] >= 400
    assert not any(case.right for case in CASES if case.hack)


@pytest.mark.slow
def test_no_wrong_answer_is_paid_at_once() -> None:
    for case in CASES:
        try:
            verdict = judge_quickly(case.text, case.quiz).verdict
        except Undecided:
            continue
        assert verdict != "ok" or case.right, case


@pytest.mark.slow
def test_no_hack_is_paid(judged) -> None:
    assert [case for case, verdict in judged if case.hack and verdict == "ok"] == []


@pytest.mark.slow
def test_no_wrong_answer_is_paid(judged) -> None:
    assert [case for case, verdict in judged if not case.right and verdict == "ok"] == []


@pytest.mark.slow
def test_right_answers_are_paid(judged) -> None:
    found = sum(case.right and verdict == "ok" for case, verdict in judged)
    right = sum(case.right for case in JUDGED)
    paid = sum(verdict == "ok" for _, verdict in judged)
    assert 2 * found / (right + paid) >= LEAST_F1


@pytest.mark.slow
def test_no_right_answer_takes_too_long(judged) -> None:
    assert [case for case, verdict in judged if case.right and verdict == "timeout"] == []
