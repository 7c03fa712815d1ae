"""Tasks from the rows of a data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentgym_rl.core.task import Split
from agentgym_rl.gym.data import Row, Rows, RowTask, RowTasks
from agentgym_rl.gym.data import row_tasks as tasks_of_rows

from .formats import FORMATS, check_format, format_of


@dataclass(frozen=True, slots=True)
class MakeQuestion:
    """Makes a row of `format` a task: `{"kind": "symbolic", "question": ..., "answer": ...}`."""

    format: str

    def __call__(self, row: Row) -> RowTask:
        item = FORMATS[self.format].item_of(row)
        data = {"kind": "symbolic", "question": item.question, "answer": item.answer}
        return RowTask(item.question, data)


@dataclass(frozen=True, slots=True)
class ChooseFormat:
    """The format that is named, or else that of the first row."""

    format: str | None

    def __call__(self, row: Row, where: str) -> MakeQuestion:
        return MakeQuestion(self.format or format_of(row, where))


def row_tasks(split: Split, *, seed: int = 0, format: str | None = None, **rows: Any) -> RowTasks:
    """The tasks of `split`, of the `rows` that a file or a Hugging Face data set has.

    `rows` are the fields of `agentgym_rl.gym.data.Rows`: `path` or `dataset`, and what goes with
    them. `format` is found by the fields of the first row, unless it is given. Rows whose answer
    cannot be read are left out, counted and told.

    Raises:
        ConfigError: options that do not fit together, data that is absent or malformed, or not
            one row that makes a task.
    """
    chosen = ChooseFormat(None if format is None else check_format(format))
    return tasks_of_rows(split, Rows.of_options(rows), chosen, seed=seed)
