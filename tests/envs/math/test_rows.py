"""Rows of public data sets: their formats, what is refused, what is held out, and playing them."""

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from arl_envs.math.env import MathEnv
from arl_envs.math.judge import Quiz, judge_quickly
from arl_envs.math.rows import FORMATS, Item, format_of, row_tasks

from agentgym_rl.core import ConfigError, EnvError, Task
from agentgym_rl.gym import registry
from agentgym_rl.gym.data import RowRefused
from tests.kit.cases import cases

GSM8K = {"question": "Six times seven?", "answer": "6*7 = <<6*7=42>>42\n#### 42"}
MATH_500 = {
    "problem": "Solve $x^2=2$ for $x>0$.",
    "solution": r"So \boxed{\sqrt{2}}.",
    "answer": r"\sqrt{2}",
    "subject": "Algebra",
    "level": 1,
    "unique_id": "test/algebra/1.json",
}
HENDRYCKS = {"problem": "Half?", "type": "Algebra", "solution": r"So \boxed{\frac12}."}
DEEPSCALER = {"problem": "Tuple?", "answer": "(1, 2)", "solution": "..."}
DEEPMATH = {"question": "Limit?", "final_answer": r"\infty", "difficulty": 5.0}
PLAIN = {"question": "One and one?", "answer": 2}
USER = {"role": "user", "content": "Why 3?"}
VERL = {
    "data_source": "x",
    "prompt": [{"role": "system", "content": "Think."}, USER],
    "reward_model": {"style": "rule", "ground_truth": "3"},
}
KNOWN = {
    "gsm8k": (GSM8K, Item("Six times seven?", "42")),
    "math": (MATH_500, Item("Solve $x^2=2$ for $x>0$.", r"\sqrt{2}")),
    "hendrycks": (HENDRYCKS, Item("Half?", r"\frac12")),
    "deepmath": (DEEPMATH, Item("Limit?", r"\infty")),
    "plain": (PLAIN, Item("One and one?", "2")),
    "verl": (VERL, Item("Why 3?", "3")),
    "trl": ({"prompt": [USER], "ground_truth": "3"}, Item("Why 3?", "3")),
    "prompt": ({"prompt": "Why 3?", "answer": "3"}, Item("Why 3?", "3")),
    "trl_solution": ({"prompt": "Why 3?", "solution": r"So \boxed{3}."}, Item("Why 3?", "3")),
    "instruction": (
        {"instruction": "Add.", "input": "1, 2", "output": "3"},
        Item("Add.\n\n1, 2", "3"),
    ),
}


@cases("name", KNOWN)
def test_formats_are_found_by_their_fields(name: str) -> None:
    row, item = KNOWN[name]
    assert format_of(row, "row 1") == name
    assert FORMATS[name].item_of(row) == item


def test_a_constant_may_stand_before_a_unit() -> None:
    row = {"problem": "p", "answer": r"$12\pi \text{ cm}^2$"}
    assert FORMATS["math"].item_of(row) == Item("p", row["answer"])


def test_deepscaler_is_of_the_math_format() -> None:
    assert format_of(DEEPSCALER, "row 1") == "math"
    assert FORMATS["math"].item_of(DEEPSCALER) == Item("Tuple?", "(1, 2)")


@cases(
    "name, row, why",
    [
        ("gsm8k", GSM8K | {"answer": "42"}, "####"),
        ("math", MATH_500 | {"answer": ""}, "expected text"),
        ("math", MATH_500 | {"answer": r"\sum_{i=1}^n i"}, "cannot be read"),
        ("math", MATH_500 | {"problem": None}, "problem: got nothing"),
        ("hendrycks", HENDRYCKS | {"solution": "one half"}, "boxed"),
        ("plain", PLAIN | {"answer": 0.5}, "whole number"),
        ("verl", VERL | {"prompt": [USER, USER]}, "several messages"),
        ("verl", VERL | {"reward_model": "3"}, "reward_model: got '3', expected an object"),
    ],
)
def test_rows_that_make_no_task_say_why(name: str, row: dict[str, Any], why: str) -> None:
    with pytest.raises(RowRefused, match=why):
        FORMATS[name].item_of(row)


def _file(folder: Path, *rows: dict[str, Any]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_fields_of_no_format_are_an_error_that_names_the_row(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rows.jsonl.*1.*prompt.*gsm8k"):
        row_tasks("train", path=_file(tmp_path, {"prompt": "?", "reply": "!"}))
    with pytest.raises(ConfigError, match="no row format is called 'gsm9k'"):
        row_tasks("train", path="rows.jsonl", format="gsm9k")


def test_refused_rows_are_counted_and_told(tmp_path: Path, caplog) -> None:
    rows = [MATH_500, MATH_500 | {"problem": "Dots?", "answer": r"1,\ldots,9"}]
    with caplog.at_level(logging.WARNING):
        tasks = row_tasks("train", path=_file(tmp_path, *rows), eval_fraction=0)
    assert (len(tasks), tasks.describe()["rows_refused"]) == (1, 1)
    assert "1 of 2 rows are refused" in caplog.text


NO_ANSWERS = [
    "proof",
    r"\text{Proof}",
    "Proof.",
    "notfound",
    "Not found",
    "N/A",
    "n/a",
    "none",
    "None",
]
NO_ANSWERS += ["see figure 2", "Refer to the diagram.", r"\text{solution in the attachment}"]
NO_ANSWERS += ["I don't know", "to be determined", "image", "证明见上", "the answer is on page 12"]
NO_ANSWERS += ["null", "NaN", "see solution", "(see above)", "omitted", "?", "-", r"\boxed{proof}"]
NO_ANSWERS += [
    "The proof is complete",
    "Proven that $a=b$",
    "Q.E.D.",
    "略",
    "证明",
    "unknown",
    "TBD",
]


def test_right_answers_that_are_none_are_left_out_and_named_once(tmp_path: Path, caplog) -> None:
    rows = [MATH_500, *({"problem": f"{i}?", "answer": "proof"} for i in range(40))]
    with caplog.at_level(logging.WARNING):
        tasks = row_tasks("train", path=_file(tmp_path, *rows), eval_fraction=0)
    assert (len(tasks), tasks.describe()["rows_refused"]) == (1, 40)
    assert "40 of 41 rows are refused" in caplog.text
    said = "the answer 'proof' cannot be read: it says that there is no answer (as in 39 more)"
    assert caplog.text.count("'proof'") == caplog.text.count(said) == 1


@cases("answer", NO_ANSWERS)
def test_no_answer_is_no_task(answer: str) -> None:
    with pytest.raises(RowRefused, match="cannot be read"):
        FORMATS["math"].item_of(MATH_500 | {"answer": answer})
    with pytest.raises(EnvError, match="says that there is no answer"):
        judge_quickly(r"\boxed{proof}", Quiz(answer))


@cases(
    "answer, question",
    [
        (r"\text{none}", "Which?"),
        ("none", "Which are even? If there are none, write none."),
        ("n/a", "Divide $n$ by $a$."),
        ("80 proof", "Which proof has it?"),
        ("no solution", "Solve it."),
        ("undefined", "What is $1/0$?"),
        ("1 solution", "How many?"),
    ],
)
def test_answers_that_are_like_no_answer(answer: str, question: str) -> None:
    assert FORMATS["math"].item_of({"problem": question, "answer": answer}).answer == answer


def test_held_out_questions_are_never_trained_on(tmp_path: Path) -> None:
    path = _file(tmp_path, *({"question": f"{i} + 1?", "answer": i + 1} for i in range(200)))
    halves = [row_tasks(split, path=path, eval_fraction=0.5) for split in ("train", "eval")]
    train, held = ({task.data["question"] for task in half} for half in halves)
    assert not train & held
    assert len(train | held) == 200
    assert min(len(train), len(held)) > 60


def _play(env: MathEnv, task: Task, content: str | None = None) -> Any:
    async def play() -> Any:
        try:
            await env.reset(options={"task": task})
            gold = env.solve()
            assert gold is not None
            return await env.step({"content": content} if content is not None else gold[0])
        finally:
            await env.close()

    return asyncio.run(play())


ROWS = [GSM8K, MATH_500, HENDRYCKS, DEEPSCALER, DEEPMATH, PLAIN]


@cases("row", ROWS, ids=range(len(ROWS)))
def test_gold_play_scores_one(tmp_path: Path, row: dict[str, Any]) -> None:
    rows = {"path": _file(tmp_path, row), "eval_fraction": 0}
    task = MathEnv.task_source("train", seed=0, rows=rows)[0]
    step = _play(MathEnv(rows=rows), task)
    assert (step.reward, step.terminated, step.info["verifier"]) == (1.0, True, "ok")
    assert step.info["metrics"]["verifier_timeouts"] == 0


QUESTION = {"kind": "symbolic", "question": r"Simplify $\sqrt{12}$.", "answer": r"2\sqrt{3}"}
SQRT = Task("sqrt", 0, QUESTION)


def test_the_question_is_no_answer() -> None:
    step = _play(MathEnv(), SQRT, r"\boxed{\sqrt{12}}")
    assert (step.reward, step.info["verifier"]) == (0.0, "wrong")
    assert "question" in step.info["verifier_detail"]


@pytest.mark.slow
def test_algebra_runs_in_a_pool_of_its_own() -> None:
    step = _play(MathEnv(), SQRT, r"\boxed{2\cdot 3^{1/2}}")
    assert (step.reward, step.info["verifier"]) == (1.0, "ok")
    assert step.info["verifier_ms"] > 0


def test_rows_are_played_without_a_tool_unless_asked(tmp_path: Path) -> None:
    rows = {"path": _file(tmp_path, GSM8K), "eval_fraction": 0}
    assert MathEnv(rows=rows).tools == ()
    assert len(MathEnv(rows=rows, calculator_for_rows=True).tools) == 1
    call = {"id": "c", "function": {"name": "calculator", "arguments": '{"expression": "1"}'}}

    async def calling() -> str:
        env = MathEnv(rows=rows)
        await env.reset(seed=0)
        return (await env.step({"tool_calls": [call]})).observation[0]["content"]

    assert asyncio.run(calling()) == "error: bad call"


def test_rows_have_short_names(tmp_path: Path) -> None:
    path = _file(tmp_path, GSM8K)
    for options in (
        {"data": path},
        {"eval_data": path},
        {"data": path, "rows": {"format": "gsm8k"}},
    ):
        env = MathEnv(**options)
        assert (env.tools, env.uses_verifier, env.max_turns) == ((), True, 8)
        split = "eval" if "eval_data" in options else "train"
        if "data" in options:
            options = {**options, "rows": {"eval_fraction": 0, **options.get("rows", {})}}
        (task,) = MathEnv.task_source(split, seed=0, **options)
        assert task.data["answer"] == "42"


LONGER = "2*3 = <<2*3=6>>6\n6*7 = <<6*7=42>>42\n42-2 = <<42-2=40>>40\n#### 40"


def test_rows_with_many_calculations_can_be_left_out(tmp_path: Path) -> None:
    path = _file(tmp_path, GSM8K, {"question": "And then?", "answer": LONGER})
    for most, kept in ((None, 2), (3, 2), (2, 1), (1, 1)):
        tasks = row_tasks("train", path=path, eval_fraction=0, max_calculations=most)
        assert len(tasks) == kept, most
        assert tasks.describe()["rows_refused"] == 0
    with pytest.raises(ConfigError, match="no row of 2 makes a task: 2 are left out"):
        row_tasks("train", path=path, eval_fraction=0, max_calculations=0)
    with pytest.raises(ConfigError, match="max_calculations: got -1"):
        row_tasks("train", path=path, max_calculations=-1)
    plain = _file(tmp_path, PLAIN)
    with pytest.raises(ConfigError, match="only for rows of the format gsm8k, not plain"):
        row_tasks("train", path=plain, max_calculations=2)


@pytest.mark.skipif("ARL_GSM8K" not in os.environ, reason="ARL_GSM8K names no folder with GSM8K")
def test_gsm8k_is_read_whole() -> None:
    folder = Path(os.environ["ARL_GSM8K"])
    both = {"data": str(folder / "train.jsonl"), "eval_data": str(folder / "test.jsonl")}
    for most, numbers in ((None, (7473, 1319)), (2, (2674, 440))):
        rows = {"max_calculations": most}
        sources = (MathEnv.task_source(s, seed=0, rows=rows, **both) for s in ("train", "eval"))
        assert tuple(map(len, sources)) == numbers


def test_options_are_checked() -> None:
    for options in ({"mark": "any"}, {"verify_timeout_s": 0}, {"level": 2, "rows": {"path": "x"}}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            registry.make("arl_envs.math:SPEC", **options)
    bad = Task("t", 0, {"kind": "symbolic", "question": "?", "answer": r"\int x"})
    with pytest.raises(EnvError, match="cannot be read"):
        asyncio.run(MathEnv().reset(options={"task": bad}))
    with pytest.raises(EnvError, match="VerifierPool"):
        asyncio.run(MathEnv().reset(options={"verifier": "pool"}))
