"""Typed verdicts: what is a reward of 0, and what is none at all."""

import asyncio
import json
from dataclasses import dataclass

import pytest
from arl_envs.math.answers import final_answer
from arl_envs.math.judge import Judgement, Quiz, judge, judge_quickly
from arl_envs.math.symbolic.literal import Undecided
from arl_verifier.pool import ProcessPool

from agentgym_rl.core import EnvError, InfraError
from agentgym_rl.gym.verifier import Called, Status
from tests.conftest import shared_data
from tests.kit.cases import cases

NEEDS_ALGEBRA = (r"\boxed{\sin 2x}", Quiz(r"2\sin x\cos x"))
HANGS = (r"\boxed{(x^2+2x+1)^{2500}}", Quiz("(x+1)^{5000}"))


@dataclass
class Ends:
    """A verifier whose every call ends in one way."""

    status: Status
    value: str | None = None

    async def call(self, target: str, *args: str, timeout_s: float) -> Called:
        return Called(self.status, self.value, error=f"{target} {len(args)} {timeout_s}", ms=7.0)


def judged(text: str, quiz: Quiz, verifier: Ends) -> Judgement:
    return asyncio.run(judge(text, quiz, verifier, timeout_s=1))


@cases("value", ["ok", "wrong"])
def test_what_the_verifier_says_is_the_verdict(value: str) -> None:
    assert judged(*NEEDS_ALGEBRA, Ends("done", value)) == Judgement(value, "", 7.0)  # pyright: ignore[reportArgumentType]


@cases("status", ["timeout", "memory"])
def test_an_answer_beyond_its_limits_is_a_verdict(status: Status) -> None:
    found = judged(*NEEDS_ALGEBRA, Ends(status))
    assert (found.verdict, found.ms) == ("timeout", 7.0)
    assert "twice" in found.detail


@cases("status", ["crash", "error"])
def test_a_broken_verifier_is_no_verdict(status: Status) -> None:
    with pytest.raises(InfraError, match=f"crash, {status}"):
        judged(*NEEDS_ALGEBRA, Ends(status))


def test_a_pool_that_does_not_run_is_no_verdict() -> None:
    with pytest.raises(InfraError):
        asyncio.run(judge(*NEEDS_ALGEBRA, ProcessPool(), timeout_s=1))


def test_a_gold_answer_that_cannot_be_read_is_the_tasks_fault() -> None:
    with pytest.raises(EnvError, match="cannot be read"):
        judge_quickly(r"\boxed{1}", Quiz(r"\sum_{i=1}^n i"))
    with pytest.raises(EnvError, match="math-verify"):
        judged(*NEEDS_ALGEBRA, Ends("done", "gold"))


@cases(
    "text, verdict",
    [
        (r"\boxed{5}", "ok"),
        (r"\boxed{6}", "wrong"),
        (r"\boxed{37\cdot 91}", "wrong"),
        (r"\boxed{5", "unparseable"),
        (r"\boxed{}", "unparseable"),
        ("The answer is 5", "unparseable"),
        (r"\boxed{\sum_{i=1}^{5} 1}", "unparseable"),
    ],
)
def test_numbers_need_no_verifier(text: str, verdict: str) -> None:
    assert judge_quickly(text, Quiz("5")).verdict == verdict


def test_the_verifier_is_given_the_last_box() -> None:
    with pytest.raises(Undecided) as undecided:
        judge_quickly(r"\boxed{7} no: \boxed{\sin 2x}", NEEDS_ALGEBRA[1])
    assert str(undecided.value) == r"\sin 2x"


HUGE = ["9^{9^{9^{9}}}", "10^{10}!", "(" * 400 + "1" + ")" * 400, "(x+1)^{5000}", "1e99999999"]
HUGE += [r"(1+i)\cdot 17e307x"]


@cases("gold", ["5", r"\sqrt{2}", "x+1", "(1,2)", r"\{1,2\}", "x>3", "x+y=1"])
@cases("box", HUGE, ids=range(len(HUGE)))
@pytest.mark.timeout(60)
def test_huge_answers_are_judged_at_once(gold: str, box: str) -> None:
    said = judge_quickly(rf"\boxed{{{box}}}", Quiz(gold)).verdict
    assert said in ("wrong", "unparseable")


@pytest.mark.timeout(60)
def test_finding_the_answer_takes_a_time_linear_in_the_text() -> None:
    spaces, newlines = " " * 50_000, "\n" * 50_000
    for text in (f"answer{spaces}", f"the{spaces}answer is", f"\\boxed{spaces}", newlines,
                 "\\boxed " * 5000, "Answer:" * 5000, "the answer is" * 400, "**Answer**\n" * 3000,
                 "\\boxed{3} and " * 3000, "*" * 20_000, f"#### {spaces}"):  # fmt: skip
        final_answer(text, "anchored")


@pytest.mark.slow
def test_gsm8k_is_paid_by_its_own_answers_and_by_no_others() -> None:
    unpaid, paid = list[str](), list[str]()
    for line in (shared_data() / "gsm8k" / "test.jsonl").read_text().splitlines():
        row = json.loads(line)
        gold = row["answer"].rpartition("####")[2].strip()
        quiz, other = Quiz(gold, row["question"]), int(gold.replace(",", "")) + 1
        for text in (rf"\boxed{{{gold}}}", rf"$\fbox{{{gold}}}$"):
            unpaid += [gold] if judge_quickly(text, quiz).verdict != "ok" else []
        for text in (rf"\boxed{{{other}}}", rf"\boxed{{{gold}\text{{ thousand}}}}"):
            asked = text.endswith("thousand}}") and "thousand" in row["question"]
            wrong = judge_quickly(text, quiz).verdict == "ok" and not asked
            paid += [row["question"]] if wrong else []
    assert (unpaid, paid) == ([], [])


@pytest.mark.slow
def test_an_answer_that_hangs_is_stopped_and_the_next_one_judged() -> None:
    async def both() -> list[str]:
        async with ProcessPool(1) as pool:
            hung = await judge(*HANGS, pool, timeout_s=0.5)
            return [hung.verdict, (await judge(*NEEDS_ALGEBRA, pool, timeout_s=20)).verdict]

    assert asyncio.run(both()) == ["timeout", "ok"]
