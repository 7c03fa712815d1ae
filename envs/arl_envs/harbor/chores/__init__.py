"""Chores in a terminal, whose results are files that the harness compares, in Harbor's format."""

from .tasks import LEVELS, ChoreTasks, make

task_source = ChoreTasks

__all__ = ["LEVELS", "make", "task_source"]
