"""What a check came to: a result per criterion, a tally per scripted agent; all of it JSON."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """Of a criterion."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one criterion."""

    id: str
    outcome: Outcome
    detail: str = ""
    """Failed: what was found and what is allowed. Skipped: why."""
    fix: str = ""
    """Failed: what to do."""
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Tally:
    """A scripted agent over many tasks."""

    agent: str
    episodes: int
    mean_reward: float
    num_at_most: int
    """Episodes that paid all there is."""
    num_paid: int
    """Episodes that paid more than the least."""
    num_errors: int
    first_error: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The whole check."""

    env: str
    results: tuple[Result, ...]
    tallies: tuple[Tally, ...] = ()
    duration_s: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether nothing failed; what was skipped is no failure."""
        return not self.failed and all(tally.passed for tally in self.tallies)

    @property
    def failed(self) -> list[str]:
        """Ids of the criteria that failed."""
        return [each.id for each in self.results if each.outcome is Outcome.FAILED]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON: env, passed, criteria, agents, counts, duration_s."""
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
    """A criterion for people: a line, and below it what was found and what to do."""
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
    """A scripted agent for people."""
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
    """The last line."""
    counts = report.to_json()["counts"]
    said = f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
    verdict = "passes" if report.passed else "does not pass"
    return f"{report.env} {verdict}: {said} in {report.duration_s:.1f} s"


def _indented(text: str) -> list[str]:
    return textwrap.wrap(
        text, 80, initial_indent=" " * 5, subsequent_indent=" " * 12, break_on_hyphens=False
    )
