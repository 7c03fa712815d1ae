"""Task folders and datasets: read without trust, left out by name, split by the hash of names."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from arl_envs.harbor import folder as limits
from arl_envs.harbor import tasks
from arl_envs.harbor.env import HarborEnv
from arl_envs.harbor.folder import read_folder, task_folders
from arl_envs.harbor.options import Options
from arl_envs.harbor.task import HarborTask
from arl_envs.harbor.tasks import FolderTasks, make_task

from agentgym_rl import ConfigError, EnvError, Task, spec
from tests.kit.cases import cases

from .kit import SOLVE, small_task, toml, written


def test_a_folder_gives_the_task_that_was_written(tmp_path: Path) -> None:
    task = small_task()
    assert read_folder(written(tmp_path / "answer")) == task
    assert read_folder(tmp_path / "answer").digest == task.digest


def test_the_name_of_the_package_comes_first(tmp_path: Path) -> None:
    config = {"task": {"name": "org/shop"}}
    assert read_folder(written(tmp_path / "x", config=config)).name == "org/shop"
    assert read_folder(written(tmp_path / "y"), name="set/y").name == "set/y"


def test_a_set_is_read_once_and_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "abc":
        written(tmp_path / name)
    read: list[Path] = []

    def counted(path: Path, *, name: str) -> HarborTask:
        read.append(path)
        return read_folder(path, name=name)

    monkeypatch.setattr(tasks, "read_folder", counted)
    monkeypatch.setattr(tasks, "LOG_EVERY_S", -1.0)
    options = Options(source=str(tmp_path), split_by="all")
    with caplog.at_level(logging.INFO, logger="arl_envs"):
        first = FolderTasks(tmp_path, "train", options)
    assert caplog.messages[-1].endswith("2 of 3 task folders are read")
    assert FolderTasks(tmp_path, "eval", options).describe() == first.describe()
    assert len(read) == 3
    (tmp_path / "a/instruction.md").write_text("Other words.")
    assert FolderTasks(tmp_path, "train", options).describe() != first.describe()
    assert len(read) == 4


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as error:
        read_folder(path)
    return str(error.value)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a")
    for part, said in [
        ("solution/solve.sh", "solution/ has no solve.sh"),
        ("tests/test.sh", "tests/test.sh is missing"),
        ("environment/Dockerfile", "environment/Dockerfile is missing"),
        ("instruction.md", "instruction.md is missing"),
        ("task.toml", "task.toml is missing"),
    ]:
        (path / part).unlink()
        if part.startswith("solution"):
            (path / "solution/other").write_text("x")
            assert said in refused(path)
            (path / "solution/other").unlink()
        else:
            assert said in refused(path)
            (path / part).write_bytes(SOLVE if part.endswith(".sh") else b"FROM x\n")
    for text in ("[a\n", "a = [1,", 'a = "x', "\0"):
        (path / "task.toml").write_text(text)
        assert "task.toml is no TOML" in refused(path)


def test_hostile_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a")
    secret = tmp_path / "secret"
    secret.write_text("key")
    link = path / "environment/leak"
    link.symlink_to(secret)
    assert "environment/leak is a link out of the task's folder" in refused(path)
    link.unlink()
    link.symlink_to("repo/README.md")  # within the task
    assert read_folder(path).environment["leak"] == b"about\n"
    link.unlink()
    os.mkfifo(link)
    assert "environment/leak is no regular file" in refused(path)
    link.unlink()
    link.write_bytes(b"x" * 1000)
    monkeypatch.setattr(limits, "MAX_FILE_BYTES", 500)
    assert "environment/leak: too large" in refused(path)
    monkeypatch.undo()
    (path / "environment/docker-compose.yaml").write_text("services: {}")
    assert "several containers" in refused(path)
    (path / "environment/docker-compose.yaml").unlink()
    with (path / "environment/huge").open("wb") as file:
        file.truncate(2 << 30)  # sparse
    assert "environment/huge: too large; allowed" in refused(path)
    (path / "environment/huge").unlink()
    (path / "trajectory.json").write_text("{}")
    assert "trajectory.json: agents get no conversation" in refused(path)
    (path / "trajectory.json").unlink()
    for part in ("environment", "solution"):
        (path / part).rename(tmp_path / part)
        (path / part).symlink_to(tmp_path / part)
        assert f"{part} is a link; expected a folder" in refused(path)
        (path / part).unlink()
        (path / part).write_text("x")
        assert f"{part} is no folder" in refused(path)
        (path / part).unlink()
        (tmp_path / part).rename(path / part)
    (path / "instruction.md").write_bytes(b"\xff")
    assert "instruction.md is no UTF-8" in refused(path)
    (path / "instruction.md").write_text(" \n")
    assert "instruction.md is empty" in refused(path)
    (path / "instruction.md").unlink()
    (path / "instruction.md").symlink_to(secret)
    assert "instruction.md is a link" in refused(path)
    (path / "instruction.md").unlink()
    os.mkfifo(path / "instruction.md")
    assert "instruction.md is no regular file" in refused(path)


@cases("script", ["tests/test.sh", "solution/solve.sh"])
def test_a_script_for_windows_is_refused(tmp_path: Path, script: str) -> None:
    path = written(tmp_path / "a")
    (path / script).write_bytes(SOLVE.replace(b"\n", b"\r\n"))
    assert f"{script} has the line ends of Windows" in refused(path)


def test_other_texts_of_windows_are_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a")
    for name in ("task.toml", "instruction.md"):
        text = (path / name).read_bytes().replace(b"\n", b"\r\n")
        (path / name).write_bytes(b"\xef\xbb\xbf" + text)
    assert read_folder(path).instruction == "Write 42 into answer.txt."


def test_a_folder_with_a_name_that_is_no_text_is_left_out(tmp_path: Path) -> None:
    for name in (b"good", b"bad\xff", b"new\nline"):
        written(Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))))
    source = HarborEnv.task_source("train", seed=0, source=str(tmp_path), split_by="all")
    assert len(source) == 1
    assert source.describe()["left_out"] == 2


def test_a_published_image_needs_no_dockerfile(tmp_path: Path) -> None:
    config = {"environment": {"docker_image": "python:3.11-slim"}}
    path = written(tmp_path / "a", config=config, environment={})
    assert read_folder(path).environment == {}


def dataset(tmp_path: Path, count: int = 8) -> Path:
    for number in range(count):
        written(tmp_path / "set" / "group" / f"task-{number}")
    return tmp_path / "set"


def test_a_dataset_is_split_by_the_hash_of_names(tmp_path: Path) -> None:
    path = dataset(tmp_path)
    train, held_out = (
        HarborEnv.task_source(split, seed=0, source=str(path)) for split in ("train", "eval")
    )
    names = [[source[i].data["name"] for i in range(len(source))] for source in (train, held_out)]
    assert sorted(names[0] + names[1]) == [f"group/task-{n}" for n in range(8)]
    assert len(set(names[0]) & set(names[1])) == 0
    assert names[0]
    assert names[1]
    both = HarborEnv.task_source("eval", seed=0, source=str(path), split_by="all")
    assert len(both) == 8
    assert train.describe()["tasks"] == len(train)
    with pytest.raises(IndexError, match="task index 99"):
        train[99]


def test_tasks_that_cannot_be_played_are_left_out_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = dataset(tmp_path)
    (path / "group/task-3/task.toml").write_text(toml({"environment": {"gpus": 2}}))
    (path / "group/task-4/tests/test.sh").unlink()
    with caplog.at_level(logging.WARNING):
        source = HarborEnv.task_source("train", seed=0, source=str(path), split_by="all")
    assert isinstance(source, FolderTasks)
    assert len(source) == 6
    assert "task group/task-3" in source.left_out[0]
    assert "environment.gpus" in caplog.text
    assert "tests/test.sh is missing" in caplog.text


def test_a_single_task_that_cannot_be_played_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "a", config={"steps": [{"name": "x"}]})
    with pytest.raises(ConfigError, match="tasks of several steps are not played"):
        HarborEnv.task_source("train", seed=0, source=str(path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no task.toml in it or below"):
        task_folders(tmp_path / "empty")


def test_a_single_task_is_in_both_splits(tmp_path: Path) -> None:
    path = written(tmp_path / "a")
    for split in ("train", "eval"):
        assert len(HarborEnv.task_source(split, seed=0, source=str(path))) == 1


def test_a_task_whose_folder_has_changed_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a")
    task = HarborEnv.task_source("train", seed=0, source=str(path))[0]
    assert make_task(task) == small_task(name="a")
    (path / "instruction.md").write_text("another")
    with pytest.raises(EnvError, match="has changed since"):
        make_task(task)
    with pytest.raises(EnvError, match="not a task of the harbor environment"):
        make_task(Task("x", 0, {"kind": "other"}))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nothing", "arl new env --harbor nothing"),
        ("org/hello@1.0", "git clone URL tasks"),
        ("bug", "did you mean bugs"),
        ("tests/envs/harbr", "did you mean tests/envs/harbor"),
        ("pyproject.toml", r"is a file; expected its folder: --env harbor:\."),
        ("nothing", r"no generator \(bugs, chores\)"),
    ],
)
def test_unknown_sources_say_what_to_do(source: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        spec(f"harbor:{source}").task_source("train", seed=0)


def test_tasks_are_excluded_by_name(tmp_path: Path) -> None:
    path = str(dataset(tmp_path))

    def names(exclude: str) -> list[str]:
        source = HarborEnv.task_source(
            "train", seed=0, source=path, split_by="all", exclude=exclude
        )
        return [source[index].data["name"][-1] for index in range(len(source))]

    assert names("group/task-3, */task-[56]") == ["0", "1", "2", "4", "7"]
    with pytest.raises(ConfigError, match=r"exclude: no task of .* is called task-9"):
        names("task-9,*3")
    with pytest.raises(ConfigError, match="all are excluded"):
        names("*")
    with pytest.raises(ConfigError, match="exclude: only for folders"):
        HarborEnv.task_source("train", seed=0, source="bugs", exclude="x")


def test_levels_are_for_generators(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="level: only for bugs and chores"):
        HarborEnv.task_source("train", seed=0, source=str(written(tmp_path / "a")), level=2)
