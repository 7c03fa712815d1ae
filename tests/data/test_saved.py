"""Folders that `save_to_disk` of the package `datasets` wrote; and objects that are no files."""

import pickle
import sys

import pytest

from agentgym_rl.core import ConfigError, install_command
from agentgym_rl.gym.data import Rows, row_tasks

from .rows_kit import choose

datasets = pytest.importorskip("datasets", reason="datasets comes with the extra hf")


def table(*asks: str):
    return datasets.Dataset.from_list([{"ask": ask} for ask in asks])


def asked(split: str, **rows) -> list[str]:
    tasks = row_tasks(split, Rows(**rows), choose)
    return sorted(task.data["row"]["ask"] for task in pickle.loads(pickle.dumps(tasks)))


@pytest.fixture
def folder(tmp_path):
    splits = {"train": table("A", "B"), "test": table("C"), "other": table("D")}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "several"))
    del splits["other"]
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "two"))
    table("A", "B").save_to_disk(str(tmp_path / "one"))
    return tmp_path


@pytest.mark.parametrize("field", ["path", "dataset"])
def test_a_folder_of_one_split_is_divided(folder, field):
    found = [
        asked(split, **{field: str(folder / "one")}, eval_fraction=0) for split in ("train", "eval")
    ]
    assert found == [["A", "B"], []]


@pytest.mark.parametrize("field", ["path", "dataset"])
def test_train_and_test_are_taken_as_such(folder, field):
    where = {field: str(folder / "two")}
    assert [asked(split, **where) for split in ("train", "eval")] == [["A", "B"], ["C"]]


@pytest.mark.parametrize("field", ["path", "dataset"])
def test_several_splits_are_named(folder, field):
    where = {field: str(folder / "several")}
    with pytest.raises(ConfigError, match=r"has the splits \['other', 'test', 'train'\]; got "):
        asked("train", **where)
    named = where | {"train_split": "other", "eval_split": "test"}
    assert [asked(split, **named) for split in ("train", "eval")] == [["D"], ["C"]]


def test_two_folders_are_training_and_held_out_rows(folder):
    rows = {"path": str(folder / "one"), "eval_path": str(folder / "two"), "eval_split": "test"}
    assert [asked(split, **rows) for split in ("train", "eval")] == [["A", "B"], ["C"]]
    with pytest.raises(ConfigError, match=r"got eval_split=None: name the one to evaluate on"):
        asked("train", **(rows | {"eval_split": None}))


def test_splits_of_files_are_refused(tmp_path):
    (file := tmp_path / "a.jsonl").write_text('{"ask": "A"}\n')
    with pytest.raises(ConfigError, match=r"only with a data set.*eval_path \(or eval_data\)"):
        asked("train", path=str(file), train_split="train")


def test_a_damaged_folder_is_named(folder):
    next((folder / "one").glob("*.arrow")).unlink()
    with pytest.raises(ConfigError, match=r"one: a folder of save_to_disk, damaged or incomplete"):
        asked("train", path=str(folder / "one"))


def test_without_datasets_the_remedy_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError) as caught:
        asked("train", path=str(folder / "one"))
    assert install_command("hf") in str(caught.value)


def test_a_folder_of_files_names_them(tmp_path):
    (tmp_path / "a.csv").write_text("ask\nA\n")
    with pytest.raises(ConfigError, match=r"of a folder, name the files: .*/\*\.csv"):
        asked("train", path=str(tmp_path))


def test_an_object_is_saved_first():
    with pytest.raises(ConfigError, match=r'path: got a Dataset.*rows\.to_json\("rows\.jsonl"\)'):
        Rows(path=table("A"))  # pyright: ignore[reportArgumentType]
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ConfigError, match=r"got a DataFrame.*orient=\"records\", lines=True"):
        Rows(path=pandas.DataFrame({"ask": ["A"]}))  # pyright: ignore[reportArgumentType]
