"""Rubrics and comparisons, made of single questions; the same for a judge and for a panel."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agentgym_rl import ConfigError
from agentgym_rl.runtime import together

from .question import Question, defused


@dataclass(frozen=True, slots=True)
class Criterion:
    """A criterion of a rubric: the question to the judge, and the scale of its answer.

    Raises:
        ConfigError: a weight that is not above 0, or a scale without two whole numbers.
    """

    name: str
    """The name of the score among the reward's components."""
    text: str
    """The criterion in words, such as "Is the answer right? 0: wrong, 10: right and complete"."""
    weight: float = 1.0
    low: int = 0
    high: int = 10

    def __post_init__(self) -> None:
        is_scale = all(type(end) is int for end in (self.low, self.high)) and self.low < self.high
        if not 0 < self.weight < math.inf or not is_scale:
            raise ConfigError(
                f"criterion {self.name!r}: weight {self.weight} and scale {self.low!r} to "
                f"{self.high!r}: expected a weight above 0, and whole numbers, low below high"
            )


@dataclass(frozen=True, slots=True)
class Judgment:
    """The answer to a question, and its costs."""

    score: float
    costs: Mapping[str, float] = field(default_factory=dict[str, float])
    """The metrics `judge_calls`, `judge_tokens`, `judge_cached`, and `judge_usd` where the price is
    known."""
    blamed: Mapping[str, str] = field(default_factory=dict[str, str])
    """The judged texts that prevented a verdict, each with the metric that counts it:
    `judge_refused` or `judge_no_verdict`. They have the lowest score."""


class Asking(ABC):
    """A judge, or several, that answer questions with numbers."""

    max_text_bytes: int
    """The longest quoted text, in bytes of UTF-8; a longer one loses its middle."""

    @property
    @abstractmethod
    def longest_s(self) -> float:
        """Return the longest time of one answer, without the wait for its turn."""

    @abstractmethod
    async def answer(self, question: Question) -> Judgment:
        """Return the verdict on a question. A judged text that prevents a verdict has the lowest
        score: the judge refuses it, or gives no verdict on it, repeatedly, and judges a neutral
        text in its place. Otherwise a policy could choose not to be judged.

        Raises:
            InfraError: the judge cannot be reached, or gives no verdict on any text.
            EnvError: the judge refuses the request with any text.
        """

    async def score(
        self, question: str, answer: str, rubric: Sequence[Criterion], *, reference: str = ""
    ) -> dict[str, float]:
        """Return the reward of an answer, from 0 to 1: the weighted mean of its scores on the
        scales of the criteria; with each score under its criterion's name, and the costs.

        Raises:
            InfraError, EnvError: as `answer`; no criterion is left out of the mean.
            ConfigError: no criteria, or two of one name.
        """
        check_rubric(rubric)
        texts = self._quoted({"question": question, "reference": reference, "answer": answer})
        async with together() as tasks:
            pending = [
                tasks.create_task(self.answer(_rating(criterion, texts))) for criterion in rubric
            ]
        verdicts = [task.result() for task in pending]
        scores = {
            c.name: (verdict.score - c.low) / (c.high - c.low)
            for c, verdict in zip(rubric, verdicts, strict=True)
        }
        total = sum(criterion.weight for criterion in rubric)
        reward = sum(scores[c.name] * c.weight for c in rubric) / total
        spent = [*(v.costs for v in verdicts), *(_counted(v.blamed.values()) for v in verdicts)]
        return {"reward": reward, **scores, **added(spent)}

    async def compare(
        self, question: str, first: str, second: str, criterion: str, *, reference: str = ""
    ) -> Judgment:
        """Return the degree to which the first answer is the better one by a criterion, from 0 to
        1; 0.5: both are equally good. The judge gets both orders, so that a preference for a
        position has no effect. Equal answers are not compared.

        Raises:
            InfraError, EnvError: as `answer`.
        """
        if first == second:
            return Judgment(0.5)
        head = {"question": question, "reference": reference}
        async with together() as tasks:
            orders = [(first, second), (second, first)]
            pending = [
                tasks.create_task(self.answer(self._pair(criterion, head, *order)))
                for order in orders
            ]
        there, back = (task.result() for task in pending)
        swapped = {_SWAPPED[name]: metric for name, metric in back.blamed.items()}
        blamed = {**there.blamed, **swapped}
        score = (there.score + 2 - back.score) / 4
        if len(blamed) == 1:
            score = 0.0 if _FIRST in blamed else 1.0
        return Judgment(score, added([there.costs, back.costs]), blamed)

    async def rank(
        self,
        question: str,
        answers: Sequence[str],
        criterion: str,
        *,
        reference: str = "",
        opponents: int | None = None,
    ) -> list[dict[str, float]]:
        """Return for each answer its mean result against others as `reward`, and its half of the
        comparisons' costs. Each is compared with all others, or with `opponents` to either side in
        the order given. An answer that prevents a comparison (see `answer`) has the result 0.

        Raises:
            InfraError, EnvError: as `answer`.
            ConfigError: fewer than two answers, or no opponents.
        """
        pairs = _pairs(len(answers), opponents)
        async with together() as tasks:
            pending = [
                tasks.create_task(
                    self.compare(question, answers[a], answers[b], criterion, reference=reference)
                )
                for a, b in pairs
            ]
        results: list[list[float]] = [[] for _ in answers]
        costs: list[list[Mapping[str, float]]] = [[] for _ in answers]
        blamed: list[list[str]] = [[] for _ in answers]
        for (a, b), task in zip(pairs, pending, strict=True):
            verdict = task.result()
            results[a].append(verdict.score)
            results[b].append(1 - verdict.score)
            half = {name: cost / 2 for name, cost in verdict.costs.items()}
            costs[a].append(half)
            costs[b].append(half)
            for name, metric in verdict.blamed.items():
                blamed[a if name == _FIRST else b].append(metric)
        return [
            {
                "reward": 0.0 if blames else sum(its) / len(its),
                **added([*cost, _counted(blames)]),
            }
            for its, cost, blames in zip(results, costs, blamed, strict=True)
        ]

    def _quoted(self, texts: Mapping[str, str]) -> dict[str, str]:
        """Return the texts as they are quoted; an empty reference is left out."""
        shown = {name: text for name, text in texts.items() if text or name != "reference"}
        return {
            name: defused(text, max_text_bytes=self.max_text_bytes) for name, text in shown.items()
        }

    def _pair(self, criterion: str, head: Mapping[str, str], first: str, second: str) -> Question:
        texts = self._quoted({**head, _FIRST: first, _SECOND: second})
        request = f"{_COMPARE}{criterion}\n{_SIDES}"
        return Question(request, texts, 0, 2, criterion, judged=(_FIRST, _SECOND))


def check_rubric(rubric: Sequence[Criterion]) -> None:
    """Refuse a rubric whose scores could not be distinguished.

    Raises:
        ConfigError: no criteria, or two of one name.
    """
    names = [criterion.name for criterion in rubric]
    if not names or len({*names, "reward"}) <= len(names):
        raise ConfigError(f"rubric {names}: expected criteria of different names, not 'reward'")


_FIRST, _SECOND = "first answer", "second answer"
_SWAPPED = {_FIRST: _SECOND, _SECOND: _FIRST}
_COMPARE = "Compare the two answers by this criterion: "
_SIDES = "0: the second answer is better; 1: they are equally good; 2: the first answer is better."


def _rating(criterion: Criterion, texts: Mapping[str, str]) -> Question:
    request = f"Grade the answer by this criterion: {criterion.text}"
    return Question(
        request, texts, criterion.low, criterion.high, criterion.name, judged=("answer",)
    )


def _counted(metrics: Iterable[str]) -> dict[str, float]:
    return {name: float(count) for name, count in Counter(metrics).items()}


def _pairs(count: int, opponents: int | None) -> list[tuple[int, int]]:
    if count < 2 or (opponents is not None and opponents < 1):
        raise ConfigError(
            f"{count} answers, opponents {opponents}: expected at least 2 answers to rank, and "
            "opponents of at least 1, or None"
        )
    reach = count - 1 if opponents is None else min(opponents, count - 1)
    found = {
        (min(a, b), max(a, b))
        for a in range(count)
        for b in ((a + distance) % count for distance in range(1, reach + 1))
    }
    return sorted(found)


def added(costs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sums of costs by name; without `judge_usd` if a call has none, since the sum would
    be too low."""
    found: dict[str, float] = {}
    priced = True
    for one in costs:
        priced &= "judge_usd" in one or not one.get("judge_calls")
        for name, cost in one.items():
            found[name] = found.get(name, 0.0) + cost
    if not priced:
        found.pop("judge_usd", None)
    return found
