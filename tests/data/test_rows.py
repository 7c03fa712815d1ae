"""Rows of anybody's: what a maker may do, what is recorded of them, and what is held in memory."""

import json
import logging
import math
import pickle
import unicodedata

import pytest
from arl_data.hub import commit_of

from agentgym_rl.core import ConfigError, Task
from agentgym_rl.gym.data import Rows, RowTask, row_tasks
from tests.kit.cases import cases

from .rows_kit import asked, choose, choose_several, write

EVERYTHING = {"eval_fraction": 0}


def test_tasks_say_what_they_come_from(tmp_path):
    path = write(tmp_path / "rows.jsonl", {"ask": "A"}, {"ask": "B"}, {"ask": ""}, {"ask": "a"})
    told = row_tasks("train", Rows(path=path, **EVERYTHING), choose).describe()
    assert json.loads(json.dumps(told)) == told
    assert told["sources"] == [path]
    assert (told["rows"], told["rows_refused"], told["tasks_train"]) == (4, 1, 3)
    assert told["reasons"] == [f"{path}, line 3: ask: got '', expected text"]


def test_the_digest_is_of_the_tasks_not_of_their_order(tmp_path):
    one = write(tmp_path / "one.jsonl", {"ask": "A"}, {"ask": "B"})
    same = write(tmp_path / "same.jsonl", {"ask": "B"}, {"ask": "A"})
    other = write(tmp_path / "other.jsonl", {"ask": "B"}, {"ask": "C"})
    rows = [
        row_tasks("train", Rows(path=path, **EVERYTHING), choose) for path in (one, same, other)
    ]
    digests = [tasks.describe()["content"] for tasks in rows]
    assert digests[0] == digests[1] != digests[2]


def test_a_field_is_a_weight_if_it_is_named(tmp_path, caplog):
    path = write(tmp_path / "rows.jsonl", {"ask": "A", "weight": 2}, {"ask": "B", "mass": 0.5})

    def weights(**options):
        tasks = row_tasks("train", Rows(path=path, **EVERYTHING, **options), choose)
        return sorted(task.weight for task in tasks)

    assert weights(weight_field="weight") == [1.0, 2.0]
    assert not [it for it in caplog.records if it.levelno >= logging.WARNING]
    assert weights(weight_field="mass") == [0.5, 1.0]
    assert weights() == [1.0, 1.0]
    assert caplog.text.count("1 rows have a field `weight`, and it is no weight") == 2
    for weight in (-1, 1e308, math.inf):
        with pytest.raises(ValueError, match=r"expected 0 to 1e\+06"):
            Task("t", 0, weight=weight)


TWINS = {
    "a line end": lambda text: f"{text}\n",
    "spaces": lambda text: text.replace(" ", "  "),
    "close together": lambda text: text.replace("3 + ", "3+"),
    "case": str.upper,
    "no mark at the end": lambda text: text.rstrip("?"),
    "quotes": lambda text: f'"{text}"',
    "a space that does not break": lambda text: text.replace(" ", "\u00a0"),
    "an invisible character": lambda text: f"\ufeff{text[:4]}\u200b{text[4:]}",
    "accents apart": lambda text: unicodedata.normalize("NFD", text),
    "wide": lambda text: text.replace("1", "\uff11"),
    "a minus": lambda text: text.replace("-", "\u2212"),
    "an entity": lambda text: text.replace("'", "&#39;"),
    "a typographic quote": lambda text: text.replace("'", "\u2019"),
    "a formula": lambda text: text.replace("3 +", "$3 +$"),
    "another formula": lambda text: text.replace("3 +", r"\(3 +\)"),
    "marks of another script": lambda text: f"\u00bf{text[:-1]}\u3002",
}


@cases("name", TWINS)
def test_all_forms_of_a_question_are_in_one_split(tmp_path, name):
    plain = [f"Question 1{i}: Ann's caf\u00e9 3 + {i} - 1?" for i in range(60)]
    rows = [{"ask": form(text)} for text in plain for form in (str, TWINS[name])]
    splits = []
    for order in (rows, rows[::-1]):
        path = write(tmp_path / "rows.jsonl", *order)
        found = [row_tasks(split, Rows(path=path), choose) for split in ("train", "eval")]
        asked = [{task.data["row"]["ask"] for task in tasks} for tasks in found]
        assert sum(map(len, asked)) >= 60
        known = {TWINS[name](text) for text in asked[0]} | asked[0]
        assert not any({text, TWINS[name](text)} & known for text in asked[1])
        splits.append((asked[1], found[0].describe()["data"]))
    assert splits[0] == splits[1] or "space" in name or name == "a line end"


def test_forms_can_be_apart_as_in_earlier_runs(tmp_path):
    rows = [{"ask": form(f"Question {i}?")} for i in range(60) for form in (str, str.upper)]
    path = write(tmp_path / "rows.jsonl", *rows)
    held = [row_tasks("eval", Rows(path=path, join_forms=it), choose) for it in (False, True)]
    asked = [{task.data["row"]["ask"] for task in tasks} for tasks in held]
    assert asked[0] < asked[1]
    with pytest.raises(ConfigError, match="join_forms: got 'no', allowed: true, false"):
        Rows(path=path, join_forms="no")


def test_a_question_without_a_twin_is_in_the_split_that_it_was_in(tmp_path):
    rows = [{"ask": f"question {i}\nmore"} for i in range(300)]
    path = write(tmp_path / "rows.jsonl", *rows)
    alone = {task.id for task in row_tasks("eval", Rows(path=path), choose)}
    path = write(tmp_path / "rows.jsonl", *rows, {"ask": "QUESTION 7 MORE"})
    assert alone <= {task.id for task in row_tasks("eval", Rows(path=path), choose)}


def test_a_twin_of_a_held_out_row_is_no_training_row(tmp_path):
    held = write(tmp_path / "held.jsonl", {"ask": "What is it?"})
    path = write(tmp_path / "rows.jsonl", {"ask": "WHAT IS IT"}, {"ask": "Else?"})
    tasks = row_tasks("train", Rows(path=path, eval_path=held), choose)
    assert [task.data["row"]["ask"] for task in tasks] == ["Else?"]
    assert "one of the eval split" in tasks.describe()["reasons"][0]


def test_a_split_that_rows_claim_and_that_does_not_hold_is_said(tmp_path, caplog):
    row, held = {"ask": "A", "split": "train"}, {"ask": "B", "split": "eval"}
    path = write(tmp_path / "rows.jsonl", row, held)
    row_tasks("train", Rows(path=path, **EVERYTHING), choose)
    assert "1 rows have a field `split` for held-out rows" in caplog.text
    caplog.clear()
    path, other = write(tmp_path / "a.jsonl", row), write(tmp_path / "b.jsonl", held)
    row_tasks("train", Rows(path=path, eval_path=other), choose)
    assert not [it for it in caplog.records if it.levelno >= logging.WARNING]


def test_how_many_are_held_out_is_said(tmp_path, caplog):
    caplog.set_level("INFO")
    caplog.set_level("INFO", logger="arl_data.index")
    many = write(tmp_path / "many.jsonl", *({"ask": f"question {i}"} for i in range(300)))
    few = write(tmp_path / "few.jsonl", *({"ask": f"question {i}"} for i in range(30)))
    held = write(tmp_path / "held.jsonl", {"ask": "held 1"}, {"ask": "held 2"})
    told = []
    for rows, level, how in (
        (Rows(path=many), "INFO", "a share of 0.1, by the hash of the question"),
        (Rows(path=few), "WARNING", "to choose them, give eval_path or eval_data"),
        (Rows(path=few, **EVERYTHING), "INFO", "a share of 0, by the hash"),
        (Rows(path=few, eval_path=held), "INFO", "as their file or split says"),
        (Rows(eval_path=held), "INFO", "as their file or split says"),
    ):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            sizes = [len(row_tasks(split, rows, choose)) for split in ("train", "eval")]
        (record,) = [r for r in caplog.records if "held out" in r.getMessage()]
        said = f": {sizes[0]} tasks to train on, {sizes[1]} held out for evaluations, "
        if record.levelname != level or said not in caplog.text or how not in caplog.text:
            told.append((rows, caplog.text))
    assert told == []
    assert sizes == [0, 2]


class Fickle:
    """Another task each time: no pure function."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, row):
        self.calls += 1
        return RowTask(f"{row['ask']} {self.calls}", {})


def test_a_maker_that_is_no_pure_function_is_found_out(tmp_path):
    path = write(tmp_path / "rows.jsonl", {"ask": "A"})
    fickle = Fickle()
    tasks = row_tasks("train", Rows(path=path, **EVERYTHING), lambda row, where: fickle)
    with pytest.raises(ConfigError, match="no pure function"):
        tasks[0]


def broken(row):
    raise ZeroDivisionError("by nothing")


def choose_broken(row, where):
    return broken


def choose_nothing(row, where):
    return lambda row: None


def test_a_maker_that_fails_names_file_and_line(tmp_path):
    path = write(tmp_path / "rows.jsonl", {"ask": "A"})
    with pytest.raises(ConfigError, match=r"rows\.jsonl, line 1: .*ZeroDivisionError: by nothing"):
        row_tasks("train", Rows(path=path), choose_broken)
    with pytest.raises(ConfigError, match="no row of 1 makes a task: 1 are left out"):
        row_tasks("train", Rows(path=path), choose_nothing)


def test_an_index_holds_places_and_no_rows(tmp_path):
    path = write(tmp_path / "rows.jsonl", *({"ask": f"{i}", "pad": "x" * 5000} for i in range(300)))
    tasks = row_tasks("train", Rows(path=path, **EVERYTHING), choose)
    assert len(pickle.dumps(tasks)) < 300 * 60 + 2000
    assert len(tasks[7].data["row"]["pad"]) == 5000


def test_of_a_row_with_several_tasks_the_refused_ones_alone_are_left_out(tmp_path, caplog):
    rows = [{"several": list("AB")}, {"several": list("CACD")}, {"several": list("BB")}]
    path = write(tmp_path / "rows.jsonl", *rows)
    with caplog.at_level(logging.WARNING):
        tasks = row_tasks("train", Rows(path=path, **EVERYTHING), choose_several)
    assert sorted(task.data["ask"] for task in tasks) == list("ABCD")
    told = tasks.describe()
    assert (told["rows_refused"], told["tasks_refused"]) == (1, 2)
    assert "1 of 3 rows and 2 tasks beside others are refused" in caplog.text


def test_a_question_that_is_no_unicode_refuses_its_row_alone(tmp_path):
    path = write(tmp_path / "rows.jsonl", {"several": ["\ud800"]}, {"several": ["A"]})
    tasks = row_tasks("train", Rows(path=path, **EVERYTHING), choose_several)
    assert len(tasks) == 1
    assert "lone surrogate" in tasks.describe()["reasons"][0]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_sources_travel_to_other_processes(tmp_path, suffix):
    tasks = asked(tmp_path, 5)
    if suffix == "parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="pyarrow comes with the extra hf")
        import pyarrow.parquet as parquet

        rows = pyarrow.Table.from_pylist([{"ask": f"What is {i}?"} for i in range(5)])
        parquet.write_table(rows, tmp_path / "asked.parquet")
        tasks = row_tasks("train", Rows(path=str(tmp_path / "asked.parquet"), **EVERYTHING), choose)
    first = tasks[0]
    assert pickle.loads(pickle.dumps(tasks))[0] == first


def test_questions_stay_in_their_split_whatever_else_differs(tmp_path, caplog):
    held = write(tmp_path / "held.jsonl", {"ask": "A"})
    path = write(tmp_path / "rows.jsonl", {"ask": " A "}, {"ask": "B"})
    with caplog.at_level(logging.WARNING):
        tasks = row_tasks("train", Rows(path=path, eval_path=held), choose)
    assert [task.data["row"]["ask"] for task in tasks] == ["B"]
    assert "the same question as" in caplog.text


@cases(
    "files, commit",
    [
        ([f"hf://datasets/a/b@{'0a' * 20}/main/train.parquet"], "0a" * 20),
        (["hf://datasets/a/b@main/train.parquet"], None),
        ([f"x@{'0a' * 20}/1", f"x@{'0b' * 20}/2"], None),
        ([], None),
        (None, None),
    ],
)
def test_the_commit_of_a_data_set_is_in_its_files_addresses(files, commit):
    assert commit_of(files) == commit


def whole(row, where):
    return task_of_whole


def task_of_whole(row):
    return RowTask(row["ask"], dict(row))


@cases("suffix", ["jsonl", "json"])
def test_a_number_of_more_digits_than_python_reads_refuses_its_row_alone(tmp_path, suffix):
    long, fields = "7" * 5000, ("more", "weight", "id")
    lines = ['{"ask": "A"}', *(f'{{"ask": "{name}", "{name}": {long}}}' for name in fields)]
    (file := tmp_path / f"rows.{suffix}").write_text(
        "\n".join(lines) if suffix == "jsonl" else f"[{','.join(lines)}]"
    )
    told = row_tasks(
        "train", Rows(path=str(file), weight_field="weight", **EVERYTHING), whole
    ).describe()
    assert (told["tasks_train"], told["rows_refused"]) == (1, 3)
    assert "cannot be written as JSON (Exceeds the limit" in told["reasons"][0]
    assert "weight: got int" in told["reasons"][1]
