"""Inputs to try families on."""

from __future__ import annotations

import random
from collections.abc import Iterator

from arl_envs.code.families import Args, Draw, Family, Parameters


def inputs_of(family: Family, *, variants: int = 8) -> Iterator[tuple[Args, Parameters]]:
    """The edges and random inputs of some variants."""
    rng = random.Random(family.name)
    for parameters in rng.sample(list(family.variants()), variants):
        largest = Draw(rng, family.largest, parameters)
        for args in family.edges(largest):
            yield args, parameters
        for size in range(family.largest + 1):
            yield family.inputs(Draw(rng, size, parameters)), parameters
