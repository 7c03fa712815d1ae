"""Data sets through `datasets`: here from folders, since the same call loads both."""

import re
import sys
from pathlib import Path

import pytest
from arl_envs.code.rows import row_tasks

from agentgym_rl.core import ConfigError, install_command

from .rows_kit import sums, write_lines


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched, and nothing is left in the user's cache."""
    datasets = pytest.importorskip("datasets", reason="datasets comes with the extra hf")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def data_set(folder: Path, **splits: list[int]) -> str:
    folder.mkdir()
    for name, numbers in splits.items():
        write_lines(folder / f"{name}.jsonl", sums(*numbers))
    return str(folder)


@pytest.mark.slow
@pytest.mark.usefixtures("offline")
def test_a_data_set_of_one_split_is_divided(tmp_path: Path) -> None:
    dataset = data_set(tmp_path / "set", test=list(range(60)))
    train, evals = (row_tasks(split, dataset=dataset) for split in ("train", "eval"))
    assert len(train) + len(evals) == 60
    assert len(evals) > 0
    assert train[0].data["problem"]["hidden"]


@pytest.mark.usefixtures("offline")
def test_splits_are_named(tmp_path: Path) -> None:
    dataset = data_set(tmp_path / "set", train=[1, 2, 3], test=[3, 4])
    options = {"dataset": dataset, "train_split": "train", "eval_split": "test"}
    assert len(row_tasks("train", **options)) == 2
    assert len(row_tasks("eval", **options)) == 2
    assert len(row_tasks("train", dataset=dataset, train_split="train", eval_fraction=0)) == 3


@pytest.mark.usefixtures("offline")
def test_several_splits_must_be_named(tmp_path: Path) -> None:
    dataset = data_set(tmp_path / "set", train=[1], test=[2], validation=[3])
    with pytest.raises(ConfigError, match=r"has the splits \['test', 'train', 'validation'\]"):
        row_tasks("train", dataset=dataset)
    with pytest.raises(ConfigError, match=r"got train_split=train, eval_split=dev"):
        row_tasks("train", dataset=dataset, train_split="train", eval_split="dev")


@pytest.mark.usefixtures("offline")
def test_a_data_set_that_is_not_there_says_what_to_run() -> None:
    command = "hf download nobody/nothing --repo-type dataset --revision abc --local-dir DIR"
    with pytest.raises(ConfigError, match=command):
        row_tasks("train", dataset="nobody/nothing", revision="abc")


def test_without_datasets_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=re.escape(install_command("hf"))):
        row_tasks("train", dataset="nobody/nothing")
