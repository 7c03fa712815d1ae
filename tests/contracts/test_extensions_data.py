"""Kinds of files that other packages read, and a whole index of theirs in place of ours."""

import json
import sys

import pytest

from agentgym_rl.cli import main as cli
from agentgym_rl.core import ConfigError, extensions
from agentgym_rl.gym.data import Rows, RowTask, form_of, row_tasks
from tests.kit.extension import install

LINES = '''
from agentgym_rl.core import Task
from agentgym_rl.gym import data


class LinesFile(data.Reader):
    def __init__(self, path):
        self.name, self._path = str(path), path
    def __iter__(self):
        for number, line in enumerate(self._path.read_text().splitlines()):
            yield data.Found((number, 0), f"{self.name}, line {number + 1}", {"ask": line})
    def at(self, place):
        return {"ask": self._path.read_text().splitlines()[place[0]]}


class Lines(data.DataFormat):
    """A question a line."""

    endings = (".questions",)
    def open(self, path):
        return LinesFile(path)


LINES = Lines()
RIDDLE = data.RowForm("riddle", reads="the riddle", answer="solved")


class OneTask(data.RowIndex):
    """An index of one task."""

    @classmethod
    def of(cls, rows, choose):
        return cls()
    def numbers(self, split):
        return [0] if split == "train" else []
    def digest(self, number):
        return 7
    def task(self, number):
        return Task("one", 1, {"ask": "one"})
    def describe(self):
        return {"data": "7"}
'''
FORM = {"row_forms": {"theirs/riddle": "theirs_data:RIDDLE"}}
FORMATS = {"data_formats": {"lines": "theirs_data:LINES", "gone": "theirs_gone:LINES"}}
INDEX = {"row_indexes": {"one": "theirs_data:OneTask"}}


def make(row):
    return RowTask(row["ask"], dict(row))


def choose(row, where):
    return make


@pytest.fixture
def theirs(request, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(install(tmp_path / "x", {"theirs_data": LINES}, request.param)))
    yield
    sys.modules.pop("theirs_data", None)


def asked(path) -> list[str]:
    tasks = row_tasks("train", Rows(path=str(path), eval_fraction=0), choose)
    return sorted(task.data["ask"] for task in tasks)


@pytest.mark.parametrize("theirs", [FORMATS], indirect=True)
def test_files_of_their_kind_are_read(theirs, tmp_path, capsys):
    """A format that cannot be imported is no obstacle."""
    (file := tmp_path / "a.questions").write_text("One?\nTwo?\n")
    (other := tmp_path / "a.jsonl").write_text('{"ask": "Three?"}\n')
    assert (asked(file), asked(other)) == (["One?", "Two?"], ["Three?"])
    (unknown := tmp_path / "a.answers").write_text("")
    with pytest.raises(ConfigError, match=r"files of rows end in .*\.questions.*, not '\.answers'"):
        asked(unknown)
    with pytest.raises(SystemExit):
        cli.main(["list", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    kinds = {row["id"]: row["kind"] for row in rows if not row["error"]}
    assert kinds["lines"] == "kind of files"


@pytest.mark.parametrize("theirs", [FORM], indirect=True)
def test_rows_of_their_form_are_recognized(theirs):
    found = form_of({"riddle": "Why?", "solved": "So."}, "", flag="")
    assert str(found) == "theirs/riddle: prompt = the riddle, answer = solved"


@pytest.mark.parametrize("theirs", [INDEX], indirect=True)
def test_their_index_is_used_in_place_of_ours(theirs):
    assert asked("nowhere.jsonl") == ["one"]


def test_without_ours_what_is_missing_is_named(monkeypatch):
    find = extensions.find_spec
    hidden = lambda name: None if name == "arl_data" else find(name)  # noqa: E731
    monkeypatch.setattr(extensions, "find_spec", hidden)
    extensions.forget_entry_points()
    try:
        with pytest.raises(ConfigError, match=r"no installed package reads .*ours is arl_data"):
            asked("rows.jsonl")
    finally:
        extensions.forget_entry_points()
