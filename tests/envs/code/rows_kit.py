"""What the tests of rows share: writing data files, and running a submission the simple way."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arl_envs.code import driver, grader
from arl_envs.code.problem import CallTest, Problem, TextTest
from arl_envs.code.rows.assembly import Limits, problem_of
from arl_envs.code.rows.format import FORMATS

Row = Mapping[str, Any]


def problem(format: str, row: Row, **limits: Any) -> Problem:
    """The problem of a row, also if a constant passes its few tests."""
    limits = {"constant_answers": True} | limits
    made = problem_of(FORMATS[format].draft_of(row), Limits(**limits))
    assert Problem.from_json(json.loads(json.dumps(made.to_json()))) == made
    return made


def write_lines(path: Path, rows: Sequence[Row]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def sums(*numbers: int) -> list[dict[str, Any]]:
    """Rows, one a number, each another problem."""
    return [
        {
            "problem": f"Read a number and print it plus {number}.",
            "tests": [
                {"input": f"{i}\n", "output": f"{i + number}\n", "testtype": "stdin"}
                for i in range(1, 4)
            ],
        }
        for number in numbers
    ]


def passes(made: Problem, source: str) -> bool:
    """Whether `source`, which is ours and harmless, passes every hidden test."""
    return all(_passes(made, test, source) for test in made.hidden)


def _passes(made: Problem, test: CallTest | TextTest, source: str) -> bool:
    if isinstance(test, TextTest):
        return grader.passes(made, test, _run(source, test.stdin))
    args = driver.encode(list(test.args))
    order = {"prelude": made.prelude, "source": source, "entry": made.entry, "args": args}
    return grader.passes(made, test, _run(grader.DRIVER, json.dumps(order)))


def _run(source: str, stdin: str) -> bytes:
    command = [sys.executable, "-I", "-S", "-c", source]
    return subprocess.run(command, input=stdin.encode(), capture_output=True, timeout=60).stdout
