"""The judge of answers: whether the final answer of a reply is right.

Answers of generated problems are numbers, and compared as such. Answers of data sets are symbolic:
they are judged here in microseconds where that is possible, else by the verifier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from agentgym_rl import EnvError, InfraError

from .answers import Kind, Mark, MathVerdict, final_answer, last_boxed, read_number
from .echoes import echoes
from .symbolic.answer_types import Answer
from .symbolic.expression import Unreadable
from .symbolic.literal import Undecided, settle
from .symbolic.missing import says_nothing
from .symbolic.reading import read

COMPARE = "arl_envs.math.symbolic.algebra:compare"
"""The function that the verifier calls."""


class Verifier(Protocol):
    """An object that calls a function in a process that can be killed."""

    async def call(self, target: str, /, *args: Any, timeout_s: float) -> Any:
        """Return a result with `status` (done, timeout, crash, error), `value`, `error`, `ms`."""
        ...


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict on an answer, and the verifier's time in ms (0: the verifier was not needed)."""

    verdict: MathVerdict
    detail: str = ""
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Quiz:
    """A right answer and its question: `question` decides on units, order and echoes."""

    answer: str
    question: str = ""
    mark: Mark = "boxed"


def check_gold(answer: str, question: str = "") -> Answer:
    """Return a right answer from its text.

    Raises:
        Unreadable: the answer is not understood, so nothing could be compared with it, or it means
            that there is no answer.
    """
    if says_nothing(answer, question):
        raise Unreadable("it says that there is no answer")
    return read(answer, question)


def judge_quickly(text: str, quiz: Quiz) -> Judgement:
    """Judge `text` without algebra.

    Raises:
        EnvError: the right answer cannot be read.
        Undecided: the comparison takes algebra; the error's argument is the final answer of `text`.
    """
    try:
        gold = check_gold(quiz.answer, quiz.question)
    except Unreadable as error:
        raise EnvError(f"the right answer {quiz.answer!r} cannot be read: {error}") from error
    found = final_answer(text, quiz.mark)
    if found is None:
        return Judgement(MathVerdict.UNPARSEABLE, f"no final answer ({quiz.mark})")
    try:
        answer = read(found, quiz.question, quiz.answer)
        if echoes(gold, answer, quiz.question):
            return Judgement(MathVerdict.WRONG, "a repetition of the question, in other words")
        right = settle(gold, answer, quiz.question)
    except Unreadable as error:
        return Judgement(MathVerdict.UNPARSEABLE, str(error))
    except RecursionError:
        return Judgement(MathVerdict.UNPARSEABLE, "nested too deep")
    except Undecided as error:
        raise Undecided(found) from error
    return Judgement(MathVerdict.OK if right else MathVerdict.WRONG)


def judge_number(text: str, *, answer: str, kind: Kind) -> MathVerdict:
    r"""Judge whether the last \boxed{} of `text` is exactly `answer`, in time linear in the text.

    Raises:
        ValueError: `answer` itself is no number of its kind.
    """
    gold = read_number(answer, kind)
    if gold is None:
        raise ValueError(f"the task's answer {answer!r} is no {kind}")
    boxed = last_boxed(text)
    got = None if boxed is None else read_number(boxed, kind)
    if got is None:
        return MathVerdict.UNPARSEABLE
    return MathVerdict.OK if got == gold else MathVerdict.WRONG


async def judge(text: str, quiz: Quiz, verifier: Verifier, *, timeout_s: float) -> Judgement:
    """Judge `text`; the verifier is called only where algebra is needed.

    An answer that takes longer than `timeout_s` twice (the verifier tries again once) has the
    verdict `timeout`.

    Raises:
        EnvError: the right answer cannot be read.
        InfraError: the verifier itself failed, so nothing is known about the answer.
    """
    try:
        return judge_quickly(text, quiz)
    except Undecided as undecided:
        found = str(undecided)
    result = await verifier.call(COMPARE, quiz.answer, found, quiz.question, timeout_s=timeout_s)
    if result.status in ("timeout", "memory"):
        what = f"in {timeout_s:g} s" if result.status == "timeout" else "in the memory there is"
        return Judgement(MathVerdict.TIMEOUT, f"not decided {what}, twice", result.ms)
    if result.status != "done":
        raise InfraError(
            f"the verifier failed ({MathVerdict.CRASH}, {result.status}): {result.error}"
        )
    if result.value == "gold":
        raise EnvError(f"the right answer {quiz.answer!r} cannot be read by math-verify")
    return Judgement(MathVerdict(result.value), "", result.ms)
