"""Rows as people have them: the columns by which the prompt is found, and what is said of it."""

import json
import logging

import pytest

from agentgym_rl.core import ConfigError
from agentgym_rl.gym import spec
from agentgym_rl.gym.data import Rows, form_of, row_tasks
from tests.kit.cases import cases

from .rows_kit import choose, write

USER = {"role": "user", "content": "Why?"}
REPLY = {"role": "assistant", "content": "So."}
FORMS = {
    "question/answer": ({"question": "Why?", "answer": "So."}, "question, answer = answer"),
    "question/final_answer": ({"question": "Why?", "final_answer": "So."}, "question, answer = fi"),
    "question": ({"question": "Why?", "topic": "x"}, "question"),
    "problem/answer": ({"problem": "Why?", "answer": "3", "solution": "x"}, "problem, answer = "),
    "problem/solution": ({"problem": "Why?", "solution": "So."}, "problem, answer = solution"),
    "instruction/output": (
        {"instruction": "Why?", "input": "", "output": "So."},
        "instruction, then input, answer = output",
    ),
    "messages": ({"messages": [USER, REPLY]}, "messages without the last reply, answer = messages"),
    "conversations": (
        {"conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]},
        "conversations without the last reply, answer = conv",
    ),
    "prompt/completion": ({"prompt": [USER], "completion": [REPLY]}, "prompt, answer = completion"),
    "prompt/ground_truth": ({"prompt": "Why?", "ground_truth": "So."}, "prompt, answer = ground_t"),
    "prompt/solution": ({"prompt": [USER], "solution": "So."}, "prompt, answer = solution"),
    "verl": (
        {
            "data_source": "x",
            "prompt": [USER],
            "reward_model": {"style": "rule", "ground_truth": "So."},
            "extra_info": {"index": 0},
        },
        "prompt, answer = reward_model['ground_truth']",
    ),
}


def score(completion, row):
    return 1.0


def tasks_of(path: str, **options):
    found = spec(f"reward:{__name__}:score")
    return found.task_source("train", seed=0, data=path, **options)


@cases("name, row, said", [(name, *it) for name, it in FORMS.items()])
def test_the_prompt_is_found_and_said_once(tmp_path, caplog, name, row, said):
    path = write(tmp_path / f"{name.replace('/', '-')}.jsonl", row)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            (task,) = tasks_of(path, rows={"eval_fraction": 0})
    assert task.data == {"messages": [USER], "row": row}
    lines = [r.getMessage() for r in caplog.records if "rows read as" in r.getMessage()]
    assert len(lines) == 1
    assert f"rows read as {name}: prompt = {said}" in lines[0]


WITHOUT_ANSWER = {
    "messages": {"messages": [{"role": "user", "content": "Why not?"}]},
    "conversations": {"conversations": [{"from": "human", "value": "Why not?"}]},
    "verl": {"data_source": "x", "prompt": "Why not?", "reward_model": {"style": "rule"}},
    "prompt/completion": {"prompt": "Why not?", "completion": []},
}


@cases("name, row", WITHOUT_ANSWER.items(), ids=list(WITHOUT_ANSWER))
def test_a_row_without_the_answer_that_the_others_have_is_refused(tmp_path, caplog, name, row):
    path = write(tmp_path / "a.jsonl", FORMS[name][0], row)
    assert len(tasks_of(path, rows={"eval_fraction": 0})) == 1
    assert "1 of 2 rows are refused" in caplog.text
    assert "expected the answer (blank_answers=true keeps such rows)" in caplog.text
    assert len(tasks_of(path, rows={"eval_fraction": 0}, blank_answers=True)) == 2


def test_an_answer_may_be_a_call_of_a_tool(tmp_path):
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    path = write(tmp_path / "a.jsonl", {"messages": [USER, called]})
    assert len(tasks_of(path, rows={"eval_fraction": 0})) == 1


def test_an_instruction_is_followed_by_its_input(tmp_path):
    row = {"instruction": "Add.", "input": "1 and 2", "output": "3"}
    (task,) = tasks_of(write(tmp_path / "a.jsonl", row), rows={"eval_fraction": 0})
    assert task.data["messages"][0]["content"] == "Add.\n\n1 and 2"


def test_a_prompt_comes_before_all_other_columns(tmp_path, caplog):
    row = {"prompt": "Why?", "question": "Else?", "messages": [USER]}
    with caplog.at_level(logging.INFO):
        (task,) = tasks_of(write(tmp_path / "a.jsonl", row), rows={"eval_fraction": 0})
    assert task.data["messages"] == [USER]
    assert "rows read as" not in caplog.text


def test_several_prompts_are_refused_with_the_flag(tmp_path):
    row = {"question": "Why?", "messages": [USER, REPLY], "n": 1}
    path = write(tmp_path / "a.jsonl", row, row)
    with pytest.raises(ConfigError) as caught:
        tasks_of(path)
    said = str(caught.value)
    assert said.startswith(f"{path}, line 1: the prompt may be messages or question: choose one, ")
    assert "--env.options.prompt_field=messages. The columns are question, messages, n" in said
    assert len(tasks_of(path, prompt_field="question", rows={"eval_fraction": 0})) == 1


def test_no_known_prompt_is_refused_once_with_the_flag(tmp_path):
    rows = [{"id": n, "body": f"What is {n}?", "label": "x"} for n in range(9)]
    path = write(tmp_path / "a.jsonl", *rows)
    with pytest.raises(ConfigError) as caught:
        tasks_of(path)
    said = str(caught.value)
    assert said.count("line") == 1
    assert "such as --env.options.prompt_field=body. The columns are id, body, label" in said
    assert len(said.replace(path, "")) < 400


def test_csv_rows_are_recognized_too(tmp_path):
    (file := tmp_path / "a.csv").write_text("question,answer\nWhy?,So.\n")
    (task,) = tasks_of(str(file), rows={"eval_fraction": 0})
    assert task.data == {"messages": [USER], "row": {"question": "Why?", "answer": "So."}}


def test_the_form_with_most_columns_is_taken():
    row = {"question": "Why?", "answer": "So."}
    assert form_of(row, "", flag="").name == "question/answer"
    assert form_of({"question": "Why?", "answer": None}, "", flag="").name == "question"
    assert form_of({"question": None}, "", flag="").name == "question"
    assert form_of({"prompt": "", "question": "Why?"}, "", flag="").form.prompt == "prompt"


@cases("row", [{"messages": "Why?"}, {"messages": [3]}, {"conversations": [3]}])
def test_a_broken_conversation_refuses_its_row_alone(tmp_path, row):
    (kind,) = row
    said = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]
    turns = {"messages": [USER, REPLY], "conversations": said}
    path = write(tmp_path / "a.jsonl", {kind: turns[kind]}, row)
    tasks = tasks_of(path, rows={"eval_fraction": 0})
    assert (len(tasks), tasks.describe()["rows_refused"]) == (1, 1)


def test_duplicates_are_one_short_line(tmp_path, caplog):
    rows = [{"ask": f"What is {n % 20}?"} for n in range(60)]
    path = write(tmp_path / "a.jsonl", *rows)
    tasks = row_tasks("train", Rows(path=path, eval_fraction=0), choose)
    assert (len(tasks), tasks.describe()["rows_refused"]) == (20, 40)
    (line,) = [r.getMessage() for r in caplog.records if "refused" in r.getMessage()]
    first = f"{path}, line 21: the same question as {path}, line 1: 'What is 0?' (as in 39 more)"
    assert line == f"{path}: 40 of 60 rows are refused: {first}"


def test_held_out_rows_that_are_training_rows_are_counted(tmp_path, caplog):
    rows = [{"ask": f"What is {n}?"} for n in range(30)]
    path, held = write(tmp_path / "a.jsonl", *rows), write(tmp_path / "b.jsonl", *rows[:12])
    tasks = row_tasks("train", Rows(path=path, eval_path=held), choose)
    assert len(tasks) == 18
    assert "12 training rows have the question of a held-out one" in caplog.text
    assert "18 tasks are left to train on" in caplog.text


@cases(
    "text, said",
    [
        ("<|im_start|>user\nWhy?<|im_end|>\n", "<|im_start|>"),
        ("Why? [INST] because", "[INST]"),
        ("<s>Why?", "<s>"),
        ("Why <start_of_turn>user", "<start_of_turn>"),
        ("<s>old</s> new: why?", ""),
        ("is a<|b|>c or [INSTALL]?", ""),
    ],
)
def test_control_tokens_in_prompts_are_said(tmp_path, caplog, text, said):
    path = write(tmp_path / "a.jsonl", {"ask": text}, {"ask": "else"})
    assert len(row_tasks("train", Rows(path=path, eval_fraction=0), choose)) == 2
    lines = [r.getMessage() for r in caplog.records if "control tokens" in r.getMessage()]
    assert [f"1 prompts have control tokens of a chat template, such as {said} in " in line
            for line in lines] == [True] * bool(said)  # fmt: skip


def test_math_reads_csv_files_and_columns_of_others(tmp_path):
    (file := tmp_path / "a.csv").write_text("prompt,ground_truth\nOne and one?,2\n")
    tasks = spec("math").task_source("train", seed=0, rows={"path": str(file), "eval_fraction": 0})
    assert [task.data["answer"] for task in tasks] == ["2"]


def test_lists_of_json_are_recognized(tmp_path):
    (file := tmp_path / "a.json").write_text(json.dumps([FORMS["messages"][0]] * 2))
    (task,) = tasks_of(str(file), rows={"eval_fraction": 0})
    assert task.data["messages"] == [USER]
