"""Rows of CSV and TSV files: what is read, found again, and refused."""

import pickle

import pytest
from arl_data.formats import open_file

from agentgym_rl.core import ConfigError
from agentgym_rl.gym.data import Rows, row_tasks
from tests.kit.cases import cases

from .rows_kit import choose

ROWS = [
    {"ask": "1 + 1?", "answer": "2"},
    {"ask": 'a, "b"\nand c?', "answer": "é\u2028"},
    {"ask": "last", "answer": ""},
]
QUOTED = 'ask,answer\n1 + 1?,2\n"a, ""b""\nand c?",é\u2028\n\nlast,\n'


@cases(
    "name, data",
    [
        ("plain.csv", QUOTED.encode()),
        ("open_end.csv", QUOTED[:-1].encode()),
        ("mark.csv", b"\xef\xbb\xbf" + QUOTED.encode()),
        ("semicolon.csv", QUOTED.replace(",", ";").replace("a;", "a,").encode()),
        ("upper.CSV", QUOTED.encode()),
        ("tabs.tsv", QUOTED.replace(",", "\t").replace("a\t", "a,").encode()),
        ("wide.csv", QUOTED.encode("utf-16")),
        ("big_end.tsv", b"\xfe\xff" + QUOTED.replace(",", "\t").encode("utf-16-be")),
        ("index.csv", b",ask,answer\n0,1 + 1?,2\n"),
    ],
)
def test_rows_are_read_in_order_and_found_again(tmp_path, name, data):
    (file := tmp_path / name).write_bytes(data)
    reader = pickle.loads(pickle.dumps(open_file(file)))
    found = list(reader)
    rows = [item.row for item in found]
    expected = ROWS[:1] if name == "index.csv" else ROWS
    if name == "big_end.tsv":
        expected = [ROWS[0], ROWS[1] | {"ask": 'a\t "b"\nand c?'}, ROWS[2]]
    assert rows == expected
    assert [reader.at(item.place) for item in reversed(found)] == rows[::-1]
    lines = [int(item.where.rpartition(" ")[2]) for item in found]
    assert lines == [2, 3, 6][: len(rows)]


def test_lines_end_as_on_windows(tmp_path):
    (file := tmp_path / "a.csv").write_bytes(b'ask,answer\r\n"a\r\nb",1\r\nc,2\r\n')
    reader = open_file(file)
    found = list(reader)
    assert [item.row["ask"] for item in found] == ["a\r\nb", "c"]
    assert [reader.at(item.place)["ask"] for item in found] == ["a\r\nb", "c"]


@cases(
    "name, data, said",
    [
        (
            "more.csv",
            b"ask,answer\na,b,c\n",
            r"line 2: 3 fields, expected 2 \(ask, answer\); a f",
        ),
        ("fewer.csv", b"ask,answer\na,b\nc\n", r"line 3: 1 fields, expected 2 \(ask, answer\)$"),
        ("open.csv", b'ask,answer\na,"b\nc,d\n', r"line 2: a quoted field begins in this .* never"),
        ("quote.csv", b'ask,answer\n"a"b,c\n', r"line 2: no record: ',' expected after"),
        ("latin.csv", b"ask,answer\n\xe9,b\n", r"line 2: not UTF-8: .*save the file as UTF-8"),
        ("empty.csv", b"", r"empty\.csv: no rows: the first line has the names"),
        ("twice.csv", b"ask,ask\na,b\n", r"line 1: the column ask stands twice"),
        (
            "several.csv",
            b"ask,answer\n" + b"a\nb,c\n" * 8,
            r"line 2: 1 fields.*; 8 broken lines, also 4, 6, 8, 10, 12, \.\.\.$",
        ),
        ("several.jsonl", b'{"ask": 1}\n{]\n[1]\n', r"line 2: not JSON.*; 2 broken lines, also 3$"),
    ],
)
def test_broken_lines_are_named_and_counted(tmp_path, name, data, said):
    (file := tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=said):
        list(open_file(file))


def test_fields_may_be_long(tmp_path):
    (file := tmp_path / "long.csv").write_text(f"ask\n{'x' * 200_000}\n")
    ((_, _, row),) = open_file(file)
    assert len(row["ask"]) == 200_000


def test_a_changed_file_is_refused(tmp_path):
    (file := tmp_path / "a.csv").write_text("ask\na\nb\n")
    tasks = row_tasks("train", Rows(path=str(file), eval_fraction=0), choose)
    assert sorted(task.data["row"]["ask"] for task in tasks) == ["a", "b"]
    file.write_text("ask\nc\n")
    with pytest.raises(ConfigError, match="has changed since its rows were counted"):
        tasks[0]


def test_a_column_of_weights_is_text(tmp_path):
    (file := tmp_path / "a.csv").write_text("ask,weight\na,0.5\nb,\nc,much\n")
    rows = Rows(path=str(file), eval_fraction=0, weight_field="weight")
    tasks = row_tasks("train", rows, choose)
    assert sorted(task.weight for task in tasks) == [0.5, 1.0]
    assert "weight: got 'much', expected a number" in tasks.describe()["reasons"][0]
