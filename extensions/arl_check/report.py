"""A criterion: one requirement on an environment, with its fix; and the report of a check: a
result per criterion, a tally per scripted agent; all of it JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from .subject import Subject

Judge = Callable[[Subject], Awaitable[None]]


class Violation(Exception):
    """The error of an environment that does not meet a criterion; states the cause and the rule.
    `fix`: the advice for this cause, if it is not the criterion's."""

    def __init__(self, detail: str, *, fix: str = "") -> None:
        super().__init__(detail)
        self.fix = fix


class NotJudged(Exception):
    """The error of a criterion that does not apply, or could not be judged; states the reason."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """A requirement on an environment, and the function that judges it."""

    id: str
    """The stable id, used in reports and by `--only`."""
    text: str
    """The requirement, in one line."""
    fix: str
    """The advice shown if the criterion fails."""
    judge: Judge
    """The function that judges: it raises Violation or NotJudged, or returns."""
    needs: tuple[str, ...] = ()
    """The ids of criteria whose failure would make this one fail too."""


def criterion(
    id: str, text: str, *, fix: str, needs: tuple[str, ...] = ()
) -> Callable[[Judge], Criterion]:
    """Turn the decorated function, which judges a subject, into a criterion."""

    def made(judge: Judge) -> Criterion:
        return Criterion(id, text, fix, judge, needs)

    return made


class Outcome(StrEnum):
    """The outcome of a criterion."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one criterion."""

    id: str
    outcome: Outcome
    detail: str = ""
    """The violation and the rule, if failed; the reason, if skipped."""
    fix: str = ""
    """The advice, if failed."""
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Tally:
    """The rewards of a scripted agent over many tasks."""

    agent: str
    episodes: int
    mean_reward: float
    num_at_most: int
    """The number of episodes with the maximum of the reward range."""
    num_paid: int
    """The number of episodes with more than the minimum."""
    num_errors: int
    first_error: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a complete check."""

    env: str
    results: tuple[Result, ...]
    tallies: tuple[Tally, ...] = ()
    duration_s: float = 0.0

    @property
    def passed(self) -> bool:
        """Return whether nothing failed; a skipped criterion is not a failure."""
        return not self.failed and all(tally.passed for tally in self.tallies)

    @property
    def failed(self) -> list[str]:
        """Return the ids of the criteria that failed."""
        return [each.id for each in self.results if each.outcome is Outcome.FAILED]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON: env, passed, criteria, agents, counts, duration_s."""
        counts = {o.value: sum(each.outcome is o for each in self.results) for o in Outcome}
        return {
            "env": self.env,
            "passed": self.passed,
            "counts": counts,
            "criteria": [asdict(each) for each in self.results],
            "agents": [asdict(each) for each in self.tallies],
            "duration_s": self.duration_s,
        }

    def __str__(self) -> str:
        lines = [line for each in self.results for line in result_lines(each)]
        lines += [tally_line(each) for each in self.tallies]
        return "\n".join([*lines, "", summary_line(self)])


_MARKS = {Outcome.PASSED: "ok  ", Outcome.FAILED: "FAIL", Outcome.SKIPPED: "-   "}
_WIDTH = 18


def result_lines(result: Result) -> list[str]:
    """Format a result as text: one line, and below it the violation and the advice."""
    mark = f"{_MARKS[result.outcome]} {result.id:<{_WIDTH}}"
    if result.outcome is Outcome.PASSED:
        return [mark.rstrip()]
    if result.outcome is Outcome.SKIPPED:
        return textwrap.wrap(f"{mark} {result.detail}", 80, subsequent_indent=" " * (_WIDTH + 6))
    return [
        mark.rstrip(),
        *_indented("found: " + result.detail),
        *_indented("to do: " + result.fix),
    ]


def tally_line(tally: Tally) -> str:
    """Format a tally as one line of text."""
    mark = "ok  " if tally.passed else "FAIL"
    text = (
        f"{mark} {tally.agent:<{_WIDTH}} {tally.episodes:,} tasks: mean reward "
        f"{tally.mean_reward:g}, {tally.num_at_most:,} paid in full, {tally.num_paid:,} paid at "
        "all"
    )
    return text + (
        f"; {tally.num_errors:,} ERRORS: {tally.first_error}" if tally.num_errors else ""
    )


def summary_line(report: Report) -> str:
    """Format the last line of a report."""
    counts = report.to_json()["counts"]
    numbers = f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
    verdict = "passes" if report.passed else "does not pass"
    return f"{report.env} {verdict}: {numbers} in {report.duration_s:.1f} s"


def _indented(text: str) -> list[str]:
    return textwrap.wrap(
        text, 80, initial_indent=" " * 5, subsequent_indent=" " * 12, break_on_hyphens=False
    )
