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
    """A maker of tasks from rows of `format`: `{"kind": "symbolic", "question":…, "answer":…}`."""

    format: str

    def __call__(self, row: Row) -> RowTask:
        item = FORMATS[self.format].item_of(row)
        data = {"kind": "symbolic", "question": item.question, "answer": item.answer}
        return RowTask(item.question, data)


@dataclass(frozen=True, slots=True)
class ChooseFormat:
    """A choice of the format: the named one, or else that of the first row."""

    format: str | None

    def __call__(self, row: Row, where: str) -> MakeQuestion:
        return MakeQuestion(self.format or format_of(row, where))


def row_tasks(split: Split, *, seed: int = 0, format: str | None = None, **rows: Any) -> RowTasks:
    """Return the tasks of `split` from the `rows` of a file or a Hugging Face data set.

    `rows` are the fields of `gym.data.Rows`: `path` or `dataset`, and the fields that go
    with them. `format` is inferred from the fields of the first row, unless it is given. Rows whose
    answer cannot be read are left out, counted and reported.

    Raises:
        ConfigError: options do not fit together, data is absent or malformed, or no row makes a
            task.
    """
    chosen = ChooseFormat(None if format is None else check_format(format))
    return tasks_of_rows(split, Rows.of_options(rows), chosen, seed=seed)
