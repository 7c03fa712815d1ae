"""HumanEval and MBPP themselves: every reference solution is paid, and no stub is."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from arl_envs.code.grader import passes as accepts
from arl_envs.code.problem import Problem
from arl_envs.code.rows.assembly import Limits, problem_of
from arl_envs.code.rows.format import FORMATS

from agentgym_rl.gym.data import RowRefused
from tests.conftest import shared_data
from tests.kit.cases import cases

from .rows_kit import passes

REFUSED = {
    "HumanEval/34": "every test is shown",  # its one test is in its words
    "596": "sys.getsizeof is not known",  # its answers are those of one version of Python
}
ONE_ANSWER = ["37", "87", "203", "339", "667", "674", "816", "899"]
"""The rows that are refused by default: every test wants the same, so a constant passes."""
CONSTANTS = [None, 0, 1, 2, -1, True, False, "", "a", [], {}]


def read(name: str) -> list[dict[str, Any]]:
    path: Path = shared_data() / "code" / name
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
@cases("format, name, rows", [("humaneval", "HumanEval.jsonl", 164), ("mbpp", "mbpp.jsonl", 974)])
def test_references_are_paid_and_stubs_are_not(format: str, name: str, rows: int) -> None:
    found = read(name)
    problems: list[tuple[str, Problem, str]] = []
    for row in found:
        if reason := REFUSED.get(str(row["task_id"])):
            with pytest.raises(RowRefused, match=reason):
                problem_of(FORMATS[format].draft_of(row), Limits())
            continue
        if str(row["task_id"]) in ONE_ANSWER:
            with pytest.raises(RowRefused, match="expect one answer"):
                problem_of(FORMATS[format].draft_of(row), Limits())
        kept = Limits(constant_answers=str(row["task_id"]) in ONE_ANSWER)
        made = problem_of(FORMATS[format].draft_of(row), kept)
        source = row["code"] if format == "mbpp" else row["prompt"] + row["canonical_solution"]
        problems.append((str(row["task_id"]), made, source))
    assert len(found) == rows == len(problems) + 1
    with ThreadPoolExecutor(2) as threads:
        paid = list(threads.map(lambda each: passes(each[1], each[2]), problems))
    assert not [name for (name, _, _), right in zip(problems, paid, strict=True) if not right]
    stubs = [
        (name, value)
        for name, made, _ in problems
        if name not in ONE_ANSWER
        for value in CONSTANTS
        if all(accepts(made, test, said(value)) for test in made.hidden)
    ]
    assert not stubs


def said(value: Any) -> bytes:
    kind = {list: {"list": []}, dict: {"dict": []}}.get(type(value), value)
    return json.dumps({"value": kind}).encode()
