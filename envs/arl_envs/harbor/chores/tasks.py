"""The endless chores, and the folder of each."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from agentgym_rl import EnvError, Task
from arl_envs.harbor.own import OwnTasks, bash, packed
from arl_envs.harbor.task import HarborTask
from arl_envs.splits import split_of

from . import files, texts
from .chore import WORDS, Chore, in_folder

LEVELS = (1, 2, 3)
CHORES: dict[str, Callable[[random.Random, int], Chore]] = {
    draw.__name__: draw
    for draw in (
        files.find_text,
        files.find_large,
        files.find_old,
        files.find_writable,
        files.broken_links,
        files.same_content,
        files.disk_usage,
        files.rename_ending,
        files.sort_by_ending,
        files.number_names,
        files.unpack_some,
        files.pack_some,
        texts.mend_json,
        texts.change_setting,
        texts.replace_word,
        texts.log_to_csv,
        texts.log_to_json,
        texts.count_levels,
        texts.join_tables,
        texts.merge_lists,
        texts.top_words,
    )
}
"""The kinds of chores, by name."""


class ChoreTasks(OwnTasks):
    """The chores: the words of each belong to one split, for any seed."""

    kind, levels = "chores", LEVELS

    def _drawn(self, rng: random.Random, index: int) -> dict[str, Any]:
        while True:  # every second chore is of this split
            drawn = {"chore": rng.choice(list(CHORES)), "variant": rng.getrandbits(40)}
            chore = chore_of({"level": self._level, **drawn})
            if split_of(chore.instruction) == self._split:
                return drawn


def chore_of(data: Any) -> Chore:
    """Return the chore of a task's data.

    Raises:
        EnvError: the data does not come from this generator.
    """
    try:
        if data["level"] not in LEVELS:
            raise ValueError(f"level {data['level']!r}; allowed: 1, 2, 3")
        rng = random.Random(f"arl-chores/{data['chore']}/{data['level']}/{data['variant']}")
        chore = CHORES[data["chore"]](rng, data["level"])
        return in_folder(chore, f"{rng.choice(WORDS)}-{rng.randint(1, 999)}")
    except (KeyError, TypeError, ValueError) as error:
        what = f"the task's data is no output of the generator chores: {error!r}"
        raise EnvError(what) from error


def make(task: Task) -> HarborTask:
    """Return the folder of a task of this generator: the same task gives the same bytes.

    Raises:
        EnvError: the task's data does not come from this generator.
    """
    chore = chore_of(task.data)
    prepared = [" && ".join(chore.commands)] if chore.commands else []
    return packed(
        "chores",
        task.data,
        instruction=f"{chore.instruction}\n",
        repo=chore.files,
        order={"mode": "files", "checks": chore.checks},
        solved={},
        steps=[bash("ls -R ."), *(bash(command) for command in chore.solution)],
        metadata={"level": task.data["level"], "chore": task.data["chore"]},
        commands=prepared,
        solve="\n".join(["#!/bin/sh", "set -e", *chore.solution, ""]),
    )
