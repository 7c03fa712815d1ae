"""Tasks of rows: splits, order, identity, and what is said of refused rows."""

import json
import logging
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from arl_envs.code.problem import Problem
from arl_envs.code.rows import row_tasks

from agentgym_rl.core import ConfigError, Task
from agentgym_rl.gym.data import RowTasks
from tests.kit.cases import cases

from .rows_kit import sums, write_lines


def statements(tasks: RowTasks) -> set[str]:
    return {task.data["problem"]["statement"] for task in tasks}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return write_lines(tmp_path / "rows.jsonl", sums(*range(300)))


def test_a_task_holds_its_problem(path: str) -> None:
    tasks = row_tasks("train", path=path)
    task = tasks[0]
    assert task == tasks[0] == pickle.loads(pickle.dumps(tasks))[0]
    assert task.data["kind"] == "row"
    made = Problem.from_json(json.loads(json.dumps(task.data["problem"])))
    assert made.time_limit_s == 6.0
    assert made.hidden
    assert 0 <= task.seed < 2**53


def test_splits_share_no_statement_and_lose_none(path: str) -> None:
    train, evals = (row_tasks(split, path=path) for split in ("train", "eval"))
    assert {task.split for task in evals} == {"eval"}
    assert len(train) + len(evals) == 300
    assert 10 <= len(evals) <= 60
    assert not statements(train) & statements(evals)
    assert not {task.id for task in train} & {task.id for task in evals}


def test_the_split_is_of_the_statement_not_of_the_file(tmp_path: Path, path: str) -> None:
    other = write_lines(tmp_path / "other.jsonl", sums(*range(299, 100, -1), 1000))
    assert statements(row_tasks("train", path=path)).isdisjoint(
        statements(row_tasks("eval", path=other))
    )


def test_eval_fraction(path: str) -> None:
    assert len(row_tasks("eval", path=path, eval_fraction=0)) == 0
    assert len(row_tasks("train", path=path, eval_fraction=0)) == 300
    assert 120 < len(row_tasks("eval", path=path, eval_fraction=0.5)) < 180


def test_a_file_of_its_own_for_eval_keeps_its_statements(tmp_path: Path, path: str) -> None:
    held = write_lines(tmp_path / "eval.jsonl", sums(5, 6, 400))
    train, evals = (row_tasks(split, path=path, eval_path=held) for split in ("train", "eval"))
    assert (len(train), len(evals)) == (298, 3)
    assert not statements(train) & statements(evals)


def test_the_order_is_shuffled_by_the_seed_alone(tmp_path: Path, path: str) -> None:
    one, same, other = (list(row_tasks("train", path=path, seed=s)) for s in (1, 1, 2))
    assert one == same
    assert sorted(task.id for task in one) == sorted(task.id for task in other)
    assert one != other
    backwards = write_lines(tmp_path / "backwards.jsonl", sums(*reversed(range(300))))
    assert list(row_tasks("train", path=backwards, seed=1)) == one


def test_tasks_are_the_same_in_another_process(path: str) -> None:
    code = (
        "import sys; from arl_envs.code.rows import row_tasks\n"
        "print([task for task in row_tasks('eval', path=sys.argv[1], seed=3)])"
    )
    command = [sys.executable, "-c", code, path]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert eval(said, {"Task": Task}) == list(row_tasks("eval", path=path, seed=3))


def test_past_the_end(path: str) -> None:
    tasks = row_tasks("eval", path=path)
    for index in (len(tasks), -1):
        with pytest.raises(IndexError):
            tasks[index]


def test_ids_name_the_row_and_never_repeat(tmp_path: Path) -> None:
    rows = [row | {"question_id": "Set/7 é"} for row in sums(1, 2)]
    rows += [row | {"id": 7} for row in sums(3)] + sums(4)
    tasks = row_tasks("train", path=write_lines(tmp_path / "r.jsonl", rows), eval_fraction=0)
    names = sorted(task.id.rpartition("-")[0] for task in tasks)
    assert names == ["", "7", "Set_7_", "Set_7_"]
    assert len({task.id for task in tasks}) == 4


def test_refused_rows_are_counted_and_told_once(tmp_path: Path, caplog: Any) -> None:
    bad = [{"problem": f"Bad {i}.", "tests": "[{"} for i in range(9)]
    spaced = [row | {"problem": row["problem"].replace(" ", "\n")} for row in sums(1)]
    path = write_lines(tmp_path / "rows.jsonl", [*sums(1), *spaced, *bad])
    with caplog.at_level(logging.WARNING):
        tasks = [row_tasks(split, path=path) for split in ("train", "eval")]
    assert (tasks[0].index.num_rows, tasks[0].index.num_refused) == (11, 10)
    (record,) = caplog.records
    assert "10 of 11 rows are refused" in record.getMessage()
    assert "line 2: the same question as" in record.getMessage()
    assert "line 3: tests: '[{' is not JSON" in record.getMessage()
    assert record.getMessage().endswith("(as in 8 more)")


def test_all_rows_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [{"problem": "Bad.", "tests": "[]"}] * 3)
    with pytest.raises(ConfigError, match=r"all 3 rows are refused: .*line 1: no tests"):
        row_tasks("train", path=path)


TWO = "assert f(1) == 2\nassert f(2) == 3"
PAIRS = [{"input": "1", "output": "2"}, {"input": "2", "output": "3"}]


@cases(
    "row, known",
    [
        (sums(1)[0], "deepcoder"),
        (
            {"question": "Do.", "input_output": '{"inputs": ["1", "2"], "outputs": ["2", "3"]}'},
            "apps",
        ),
        (
            {"text": "Do.", "test_list": ["assert f(1) == 2", "assert f(2) == 3"], "code": ""},
            "mbpp",
        ),
        ({"question": "Do.", "test": "assert f(1) == 2\nassert f(2) == 3"}, "kodcode"),
        ({"prompt": "def f(x):\n    ''", "entry_point": "f", "test": TWO}, "humaneval"),
        (
            {
                "prompt": "",
                "entry_point": "Solution().f",
                "test": TWO,
                "query": "Do.",
                "starter_code": "class Solution:\n    def f(self, x):",
            },
            "leetcode",
        ),
        (
            {
                "description": "Do.",
                "public_tests": {"input": ["1", "2"], "output": ["2", "3"]},
                "private_tests": {"input": ["3", "4"], "output": ["4", "5"]},
            },
            "code_contests",
        ),
        ({"description": "Do.", "official_tests": PAIRS}, "codeforces"),
        (
            {
                "prompt": "Do.",
                "verification_info": json.dumps(
                    {"test_cases": [{"type": "stdin_stdout", **pair} for pair in PAIRS]}
                ),
            },
            "verifiable",
        ),
        (
            {
                "prompt": [{"role": "user", "content": "Do."}],
                "ability": "code",
                "reward_model": {"ground_truth": '{"inputs": ["1", "2"], "outputs": ["2", "3"]}'},
            },
            "verl",
        ),
    ],
)
def test_formats_are_told_by_their_fields(tmp_path: Path, row: Any, known: str) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [row])
    tasks = row_tasks("train", path=path, eval_fraction=0)
    assert [make.format for make in tasks.index.makers] == [known]
    assert row_tasks("train", path=path, eval_fraction=0, format=known)[0] == tasks[0]


def test_unknown_formats(tmp_path: Path, path: str) -> None:
    other = write_lines(tmp_path / "other.jsonl", [{"b": 1, "a": 2}])
    with pytest.raises(ConfigError, match=r"line 1: fields \['a', 'b'\] .*deepcoder: tests"):
        row_tasks("train", path=other)
    with pytest.raises(ConfigError, match="'leet'; allowed: livecodebench"):
        row_tasks("train", path=path, format="leet")
    with pytest.raises(ConfigError, match=r"all 300 rows are refused: .*question: got nothing"):
        row_tasks("train", path=path, format="apps")


@cases(
    "options, said",
    [
        ({}, "give one of them"),
        ({"path": "a.jsonl", "dataset": "b"}, "give one of them"),
        ({"dataset": "b", "eval_path": "a.jsonl"}, "only with path"),
        ({"path": "a.jsonl", "revision": "main"}, "only with a data set"),
        ({"path": "a.jsonl", "eval_fraction": 1.0}, "eval_fraction: got 1.0"),
        ({"path": "a.jsonl", "max_tests": 0}, "max_tests: got 0, allowed: whole numbers from 1"),
        ({"path": "a.jsonl", "max_tests": "15"}, "max_tests: got '15', allowed: whole"),
        ({"path": "a.jsonl", "max_tests": 1.5}, "max_tests: got 1.5, allowed: whole"),
        ({"path": "a.jsonl", "max_bytes": None}, "max_bytes: got None, allowed: whole"),
        ({"path": "a.jsonl", "memory_mb": True}, "memory_mb: got True, allowed: whole"),
        ({"path": "a.jsonl", "eval_fraction": "x"}, "eval_fraction: got 'x', allowed: numbers"),
        ({"path": "a.jsonl", "eval_fraction": float("nan")}, "eval_fraction: got nan, allowed"),
        ({"path": "a.jsonl", "time_limit_s": "6"}, "time_limit_s: got '6', allowed: finite"),
        ({"path": "a.jsonl", "time_limit_s": float("inf")}, "time_limit_s: got inf, allowed"),
        ({"path": "a.jsonl", "time_limit_s": 0}, "time_limit_s: got 0, allowed: finite numbers"),
    ],
)
def test_options_that_do_not_fit(options: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        row_tasks("train", **options)


def test_one_file_cannot_be_both_splits(path: str) -> None:
    with pytest.raises(ConfigError, match="both name"):
        row_tasks("train", path=path, eval_path=path)


def test_no_such_split(path: str) -> None:
    with pytest.raises(ConfigError, match="allowed: train, eval"):
        row_tasks("test", path=path)  # type: ignore[arg-type]


def test_the_limits_reach_the_problems(path: str) -> None:
    tasks = row_tasks("train", path=path, max_tests=2, time_limit_s=9, memory_mb=99)
    made = Problem.from_json(tasks[0].data["problem"])
    assert (len(made.hidden), made.time_limit_s, made.memory_mb) == (2, 9, 99)
