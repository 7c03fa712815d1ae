"""Toy sizes (`arl bench NAME --dry-run`): each part of a benchmark runs once, its figures say
nothing.

A suite runs each benchmark so (`make test-programs`), since nothing else would notice that one no
longer fits the package. The size is in the environment, as most benchmarks start further processes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

VARIABLE = "ARL_BENCH_TOY"
"""The environment variable that `arl bench --dry-run` sets to 1."""
TOY = os.environ.get(VARIABLE) == "1"

_RUN = (
    *("--steps=4", "--rollout.groups_per_batch=2", "--rollout.group_size=2"),
    *("--eval.num_tasks=4", "--eval.every=0"),
)
_EVALUATION = ("--eval.num_tasks=4",)

T = TypeVar("T")


def sized(full: T, *, toy: T) -> T:
    """Return the size of a measurement: `full`, or `toy` in a dry run."""
    return toy if TOY else full


def run_flags(flags: Sequence[str]) -> list[str]:
    """Return the flags of a whole `arl train`; in a dry run those of four small batches."""
    return _replaced(flags, _RUN)


def evaluation_flags(flags: Sequence[str]) -> list[str]:
    """Return the flags of a whole `arl eval`; in a dry run those of four tasks."""
    return _replaced(flags, _EVALUATION)


def _replaced(flags: Sequence[str], small: Sequence[str]) -> list[str]:
    """Return `flags`, in a dry run with the keys of `small` set to its values.

    Evaluations that a run does not make are not added.
    """
    if not TOY:
        return list(flags)
    given = {flag.partition("=")[0]: flag for flag in flags}
    keys = {flag.partition("=")[0]: flag for flag in small}
    if given.get("--eval.num_tasks") == "--eval.num_tasks=0":
        keys.pop("--eval.num_tasks")
    if "--eval.every" not in given:
        keys.pop("--eval.every", None)
    return [flag for flag in flags if flag.partition("=")[0] not in keys] + list(keys.values())
