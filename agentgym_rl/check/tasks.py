"""Tasks of a source, and how they are compared."""

from __future__ import annotations

import json
from typing import Any

from agentgym_rl.task import Task, TaskSource


def first_tasks(source: TaskSource, count: int) -> list[Task]:
    """The first `count` tasks, or all there are."""
    found: list[Task] = []
    for index in range(count):
        try:
            found.append(source[index])
        except IndexError:
            break
    return found


def task_text(task: Any) -> str:
    """A task as JSON text, what is no JSON as its repr."""
    return json.dumps([task.id, task.seed, dict(task.data), task.split], default=repr)
