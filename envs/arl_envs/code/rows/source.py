"""Tasks from the rows of a data set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from agentgym_rl import ConfigError
from agentgym_rl.core import Split
from agentgym_rl.gym.data import Row, Rows, RowTask, RowTasks
from agentgym_rl.gym.data import row_tasks as tasks_of_rows

from .assembly import Limits, problem_of
from .format import FORMATS, check_format, format_of


@dataclass(frozen=True, slots=True)
class MakeProblem:
    """A maker of tasks from rows of `format`: `{"kind": "row", "problem": Problem.to_json()}`."""

    format: str
    limits: Limits

    def __call__(self, row: Row) -> RowTask:
        draft = FORMATS[self.format].draft_of(row)
        problem = problem_of(draft, self.limits)
        return RowTask(draft.statement, {"kind": "row", "problem": problem.to_json()})


@dataclass(frozen=True, slots=True)
class ChooseFormat:
    """A choice of the format: the named one, or else that of the first row."""

    format: str | None
    limits: Limits

    def __call__(self, row: Row, where: str) -> MakeProblem:
        name = check_format(self.format) if self.format else format_of(row, where)
        return MakeProblem(name, self.limits)


def row_tasks(
    split: Split,
    *,
    seed: int = 0,
    format: str | None = None,
    max_tests: int = 15,
    max_bytes: int = 1_000_000,
    time_limit_s: float = 6.0,
    memory_mb: int = 512,
    constant_answers: bool = False,
    several_answers: bool = False,
    **rows: Any,
) -> RowTasks:
    """Return the tasks of `split` from the `rows` of a file or a Hugging Face data set.

    `rows` are the fields of `gym.data.Rows`: `path` or `dataset`, and the fields that go
    with them. `format` is inferred from the fields of the first row, unless it is given. A problem
    keeps the `max_tests` hidden tests with the longest inputs, and is refused if it is larger than
    `max_bytes` as JSON. `time_limit_s`: CPU seconds of a test. `constant_answers` keeps rows whose
    tests all expect one answer, `several_answers` those that accept several and have no checker.

    Raises:
        ConfigError: options do not fit together, data is absent or malformed, or no row makes a
            problem.
    """
    limits = Limits(
        max_tests, max_bytes, time_limit_s, memory_mb, constant_answers, several_answers
    )
    where = Rows.of_options(rows)
    _check_limits(limits)
    return tasks_of_rows(split, where, ChooseFormat(format, limits), seed=seed)


def _check_limits(limits: Limits) -> None:
    for name in ("max_tests", "max_bytes", "memory_mb"):
        value: Any = getattr(limits, name)
        if not _is_number(value) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name}: got {value!r}, allowed: whole numbers from 1")
    for name in ("constant_answers", "several_answers"):
        if not isinstance(getattr(limits, name), bool):
            raise ConfigError(f"{name}: got {getattr(limits, name)!r}, allowed: true, false")
    seconds = limits.time_limit_s
    if not _is_number(seconds) or not 0 < seconds < math.inf:
        raise ConfigError(f"time_limit_s: got {seconds!r}, allowed: finite numbers above 0")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
