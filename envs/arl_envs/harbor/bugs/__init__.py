"""Small repositories with planted bugs, made without a network, as tasks in Harbor's format."""

from .make import make
from .tasks import LEVELS, BugTasks

task_source = BugTasks

__all__ = ["LEVELS", "make", "task_source"]
