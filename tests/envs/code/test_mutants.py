"""The hidden tests of a generated task catch solutions that are wrong by one."""

from __future__ import annotations

import pytest
from arl_envs.code.families import FAMILIES

from tests.exhaustive import EXHAUSTIVE

from .mutants import Hunt, fails, hunt, load, mutants


def test_one_place_is_changed_at_a_time():
    source = "def f(x):\n    return [min(i, 2) for i in range(x) if i < x and x == 7]"
    changes = {description.split(": ", 1)[1].split(" -> ")[1] for description, _ in mutants(source)}
    assert changes == {
        *("max", "1", "3", "range(x + 1)", "range(x - 1)", "i <= x", "x != 7", "6", "8"),
        "i < x or x == 7",
    }


@pytest.mark.parametrize("body", ["return 2", "return True", "raise KeyError", "while 1: pass"])
def test_a_wrong_answer_an_error_and_a_hang_are_failures(body: str):
    assert fails(load(f"def f():\n    {body}", "f"), (), 1)


@pytest.mark.slow
def test_hidden_tests_catch_mutants():
    """Of one variant of each family; of two with ARL_EXHAUSTIVE=1."""
    variants = 2 if EXHAUSTIVE else 1
    hunts = {name: hunt(family, num_variants=variants) for name, family in FAMILIES.items()}
    missed = {name: found.survivors for name, found in hunts.items() if found.survivors}
    assert all(found.caught >= 0.95 for found in hunts.values()), missed
    total = Hunt()
    for found in hunts.values():
        total.add(found)
    assert total.caught >= 0.99, missed
