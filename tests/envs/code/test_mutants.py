"""The hidden tests of a generated task catch solutions that are wrong by one."""

from __future__ import annotations

import pytest
from arl_envs.code.families import FAMILIES

from tests.exhaustive import EXHAUSTIVE
from tests.kit.cases import cases

from .mutants import fails, hunt, load, mutants


def test_one_place_is_changed_at_a_time():
    source = "def f(x):\n    return [min(i, 2) for i in range(x) if i < x and x == 7]"
    changes = {description.split(": ", 1)[1].split(" -> ")[1] for description, _ in mutants(source)}
    assert changes == {
        *("max", "1", "3", "range(x + 1)", "range(x - 1)", "i <= x", "x != 7", "6", "8"),
        "i < x or x == 7",
    }


@cases("body", ["return 2", "return True", "raise KeyError", "while 1: pass"])
def test_a_wrong_answer_an_error_and_a_hang_are_failures(body: str):
    assert fails(load(f"def f():\n    {body}", "f"), (), 1)


KNOWN_SURVIVORS = {"check_order": 1, "find_bracket_error": 1}
"""Mutants of two variants that are wrong on inputs too rare for 20 hidden tests."""


@pytest.mark.slow
@cases("name", FAMILIES)
def test_hidden_tests_catch_mutants(name: str):
    """Those of one variant of each family; of two with ARL_EXHAUSTIVE=1."""
    found = hunt(FAMILIES[name], num_variants=2 if EXHAUSTIVE else 1)
    assert found.num_caught > 0
    assert len(found.survivors) <= KNOWN_SURVIVORS.get(name, 0), found.survivors
