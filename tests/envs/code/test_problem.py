"""Problems as JSON, and what no tolerance is."""

import json
import math
from typing import Any

import pytest
from arl_envs.code.problem import CallTest, Problem, TextTest, Tolerance

from tests.kit.cases import cases


@cases(
    "test",
    [
        CallTest([(1, {2})], {"a": 0.5}, Tolerance(1e-6, 1e-12)),
        TextTest("1 2\n", "1.5\n", Tolerance(absolute=0.5)),
        TextTest("1 2\n", "3\n"),
    ],
)
def test_problems_survive_json(test: CallTest | TextTest) -> None:
    made = Problem("Do it.", "", [test])
    assert Problem.from_json(json.loads(json.dumps(made.to_json()))) == made


BAD: list[Any] = [-1e-9, math.nan, math.inf, 10**400, "0", None, True]


@cases("bound", BAD, ids=lambda bound: str(bound)[:9])
@cases("name", ["relative", "absolute"])
def test_bounds_are_finite_numbers_from_0(name: str, bound: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"tolerance, {name}"):
        Tolerance(**{name: bound})


@cases("said", [1e-6, "x", None, {}, {"relative": 0.5}])
def test_other_tolerances_in_json_are_refused(said: Any) -> None:
    data = Problem("Do it.", "", [TextTest("1", "2")]).to_json()
    data["hidden"][0]["tolerance"] = said
    with pytest.raises((TypeError, KeyError)):
        Problem.from_json(data)
