"""Endless generated tasks: each is a variant of a family; held-out variants are kept apart."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import get_args

from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.task import Split, Task, TaskSource
from arl_envs.splits import split_of

from .families import FAMILIES, Family, Parameters
from .generated import Form, Recipe


class GeneratedTasks(TaskSource):
    """The tasks of one split; a pure function of (families, forms, split, seed, index).

    No statement is in both splits, for any seed: a variant belongs to one of them.
    """

    def __init__(
        self, split: Split, *, families: Sequence[Family], forms: Sequence[Form], seed: int = 0
    ) -> None:
        if split not in get_args(Split):
            raise ConfigError(f"no split is called {split!r}; allowed: train, eval")
        self._split: Split = split
        self._seed = seed
        self._forms = forms
        self._families = [family for family in families if _by_split(family.name)[split]]
        if not self._families:
            names = ", ".join(family.name for family in families)
            raise ConfigError(f"no variant of {names} belongs to the {split} tasks; name more")

    def __getitem__(self, index: int, /) -> Task:
        if index < 0:
            raise IndexError(f"task index {index}: expected 0 or more")
        rng = random.Random(f"arl-code/{self._split}/{self._seed}/{index}")
        family = rng.choice(self._families)
        parameters = rng.choice(_by_split(family.name)[self._split])
        recipe = Recipe(family, parameters, rng.choice(self._forms), rng.getrandbits(53))
        task_id = f"code-{self._split}-{self._seed}-{index}"
        return Task(id=task_id, seed=recipe.seed, data=recipe.to_json(), split=self._split)


@functools.cache
def _by_split(name: str) -> dict[Split, list[Parameters]]:
    """Return the variants of a family, by split."""
    found: dict[Split, list[Parameters]] = {"train": [], "eval": []}
    family = FAMILIES[name]
    for parameters in family.variants():
        found[split_of(f"{name}: {family.statement(parameters)}")].append(parameters)
    return found
