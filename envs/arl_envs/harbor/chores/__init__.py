"""Chores in a terminal, whose results are files that the harness compares, in Harbor's format."""

from .tasks import LEVELS, make, task_source

__all__ = ["LEVELS", "make", "task_source"]
