"""Rows to read, and what makes them tasks; imported by the workers of loaders too."""

import json
from pathlib import Path
from typing import Any

from agentgym_rl.gym.data import Row, Rows, RowTask, RowTasks, row_tasks, text_field


def ask(row: Row) -> RowTask:
    return RowTask(text_field(row, "ask"), {"row": dict(row)})


def choose(row: Row, where: str) -> Any:
    return ask


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def ask_several(row: Row) -> list[RowTask]:
    return [RowTask(text, {"ask": text}) for text in row["several"]]


def choose_several(row: Row, where: str) -> Any:
    return ask_several


def asked(tmp_path: Path, count: int, **rows: Any) -> RowTasks:
    """All of `count` rows as training tasks."""
    path = write(tmp_path / "asked.jsonl", *({"ask": f"What is {i}?"} for i in range(count)))
    return row_tasks("train", Rows(path=path, **({"eval_fraction": 0} | rows)), choose)
