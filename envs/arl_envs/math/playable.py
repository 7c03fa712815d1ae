"""The check that a task can be played in this environment."""

from __future__ import annotations

from typing import get_args

from agentgym_rl.core.errors import EnvError
from agentgym_rl.core.task import checked_task

from .answers import Kind, read_number
from .checker import check_gold
from .options import Options
from .symbolic.expression import Unreadable

KINDS = (*get_args(Kind), "symbolic")


def check_task(task: object, options: Options) -> None:
    """Check that an environment with these options can play `task`.

    Raises:
        EnvError: `task` cannot be played.
    """
    task = checked_task(task)
    data = task.data
    level = data.get("level", options.level)
    if level != options.level:
        raise EnvError(f"task {task.id} is of level {level}, not {options.level}")
    if not isinstance(data.get("question"), str) or data.get("kind") not in KINDS:
        raise EnvError(f"task {task.id}: expected question, answer and kind {KINDS}")
    answer, kind = data.get("answer"), data["kind"]
    if not isinstance(answer, str):
        raise EnvError(f"task {task.id}: answer {answer!r} is no text")
    if kind != "symbolic":
        if read_number(answer, kind) is None:
            raise EnvError(f"task {task.id}: {answer!r} is no {kind}")
        return
    try:
        check_gold(answer, data["question"])
    except Unreadable as error:
        raise EnvError(f"task {task.id}: the answer {answer!r} cannot be read: {error}") from error
