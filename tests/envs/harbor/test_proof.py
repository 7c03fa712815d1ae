"""The terms of a verification: found with the solution, as strict as it allows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from arl_envs.harbor.hooks import Why
from arl_envs.harbor.proof import Terms, isolated_env, runs_programs, terms_of_solution
from arl_envs.harbor.verdict import VerifierResult

from agentgym_rl.core import InfraError
from tests.contracts.sandboxes import Opened
from tests.kit.cases import cases

from .kit import written
from .test_env import END, call, played

FIRST = Terms()
DOUBTFUL = {"Makefile": Why("built", is_doubtful=True), "conftest.py": Why("loaded")}
KEPT = Terms(frozenset({"Makefile"}))
OPEN = Terms(frozenset({"Makefile"}), is_isolated=False)


def found_by(grade: Callable[[Terms], Awaitable[VerifierResult]]) -> Coroutine[Any, Any, Terms]:
    return terms_of_solution(
        grade, FIRST, must_pay=True, full=1.0, is_unpaid=lambda verdict: verdict.reward <= 0
    )


@cases(
    "paid_on, found",
    [((FIRST,), FIRST), ((KEPT, OPEN), KEPT), ((OPEN,), OPEN), ((Terms(is_isolated=False),), None)],
)
def test_the_strictest_terms_that_pay_the_solution(
    paid_on: tuple[Terms, ...], found: Terms | None
) -> None:
    async def grade(terms: Terms) -> VerifierResult:
        left = {path: why for path, why in DOUBTFUL.items() if path not in terms.needed}
        reward = 1.0 if terms in paid_on else 0.0
        return VerifierResult("wrong", reward, dropped=left, is_isolated=terms.is_isolated)

    terms = asyncio.run(found_by(grade))
    assert (terms if not terms.problem else None) == found
    assert found or "conftest.py (loaded)" in terms.problem


def test_the_best_part_of_a_reward_counts() -> None:
    async def grade(terms: Terms) -> VerifierResult:
        reward = 0.25 if terms.is_isolated else 0.5
        return VerifierResult("wrong", reward, is_isolated=terms.is_isolated)

    terms = asyncio.run(found_by(grade))
    assert terms == Terms(is_isolated=False)


IMAGE = {"data.txt": 0o644, "tools/run": 0o755, "src/shop.py": 0o644}


@cases(
    "text",
    [
        *("python3 /app/main.py", "import solution", "from shop import x", "./program < in"),
        *("/app/program", "bash tools/run", "python3 -m shop", "for f in *.py; do :; done"),
        *("python3 -m pytest", "node lib/app.mjs", "importlib.import_module(name)"),
    ],
)
def test_tests_that_run_programs_of_the_work_folder(text: str) -> None:
    assert runs_programs({"test.sh": text.encode()}, IMAGE, ["requests"], "/app")


@cases(
    "text",
    [
        *("python3 /tests/check.py", "import json\nfrom requests import get", "cmp /app/out.txt x"),
        *("python3 -m unittest /tests/check.py", "import check", "cat data.txt"),
    ],
)
def test_tests_that_only_look_at_files(text: str) -> None:
    tests = {"test.sh": text.encode(), "check.py": b""}
    assert not runs_programs(tests, IMAGE, ["requests"], "/app")


def test_an_isolated_python_finds_the_tests_and_what_is_installed() -> None:
    env = isolated_env({"PYTHONPATH": "/app/src:/opt/lib::/app"}, "/app", "/tests")
    assert env["PYTHONPATH"] == "/tests:/opt/lib"
    assert isolated_env({}, "/app", "/tests")["PYTHONSAFEPATH"] == "1"


@pytest.mark.slow
def test_python_is_kept_from_the_work_folder_where_no_program_of_it_runs(
    world: Opened, tmp_path: Path
) -> None:
    test = b"#!/bin/sh\npython3 -c 'import sys; print(int(\"\" not in sys.path))'"
    path = written(
        tmp_path / "a",
        tests={"test.sh": test + b" > /logs/verifier/reward.txt\n"},
        solution={"solve.sh": b"#!/bin/sh\ntrue\n"},
    )
    assert played(world, path, END)[-1].reward == 1.0


@pytest.mark.slow
def test_a_solution_that_needs_a_hook_is_a_failure_that_names_the_key(
    world: Opened, tmp_path: Path
) -> None:
    test = b"#!/bin/sh\n[ -e conftest.py ] && pay=1\necho ${pay:-0} > /logs/verifier/reward.txt\n"
    solution = {"solve.sh": b"#!/bin/sh\ntouch conftest.py\n"}
    path = written(tmp_path / "a", tests={"test.sh": test}, solution=solution)
    with pytest.raises(InfraError, match=r"conftest.py \(.*arl_keep"):
        played(world, path, call("bash", command="true"), END)
