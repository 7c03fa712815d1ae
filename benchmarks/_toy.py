"""Toy sizes (`arl bench NAME --dry-run`): each part of a benchmark runs once, without meaningful
figures.

A suite runs each benchmark at this size (`make test-programs`), to detect benchmarks that no longer
work with the package. The size is in the environment, since most benchmarks start further
processes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

VARIABLE = "ARL_BENCH_TOY"
"""The environment variable that `arl bench --dry-run` sets to 1."""
TOY = os.environ.get(VARIABLE) == "1"

TOY_RUN = (
    *("--steps=4", "--rollout.groups_per_batch=2", "--rollout.group_size=2"),
    *("--eval.num_tasks=4", "--eval.every=0"),
)
"""The flags of `arl train` for four small batches."""
TOY_EVALUATION = ("--eval.num_tasks=4",)
"""The flags of `arl eval` for four tasks."""

T = TypeVar("T")


def sized(full: T, *, toy: T) -> T:
    """Return the size of a measurement: `full`, or `toy` in a dry run."""
    return toy if TOY else full


def resized(flags: Sequence[str], small: Sequence[str]) -> list[str]:
    """Return `flags`; in a dry run those of `small` replace the flags with the same keys.

    Held-out tasks are not added to a run that has none, nor evaluations to one that makes none.
    """
    if not TOY:
        return list(flags)
    given = {flag.partition("=")[0]: flag for flag in flags}
    keys = {flag.partition("=")[0]: flag for flag in small}
    if given.get("--eval.num_tasks") == "--eval.num_tasks=0":
        keys.pop("--eval.num_tasks", None)
    if "--eval.every" not in given:
        keys.pop("--eval.every", None)
    return [flag for flag in flags if flag.partition("=")[0] not in keys] + list(keys.values())
