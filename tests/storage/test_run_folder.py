"""A run's folder is claimed once."""

import asyncio
import json
from contextlib import closing

import pytest

from agentgym_rl.config import Config, load_config
from agentgym_rl.core import ConfigError, SeededTasks, Task
from agentgym_rl.storage import EpisodeLog, config_of, file_name
from agentgym_rl.storage.run_folder import (
    MARK,
    TASKS,
    build,
    create_run_dir,
    record_tasks,
    release_if_unused,
)
from tests.kit.groups import make_group


def test_default_names_are_unique(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = {create_run_dir(Config())[0] for _ in range(5)}
    assert len(folders) == 5
    assert all(folder.parent == tmp_path / "runs" for folder in folders)


def test_a_named_folder_is_claimed_once_and_can_be_released(tmp_path):
    config = Config(run=str(tmp_path / "mine"))
    folder, file = create_run_dir(config)
    assert load_config(file) == config
    with pytest.raises(ConfigError, match="already holds a run"):
        create_run_dir(config)
    release_if_unused(folder)
    create_run_dir(config)


def test_a_folder_with_a_trained_step_stays_claimed(tmp_path):
    config = Config(run=str(tmp_path / "mine"))
    folder, _ = create_run_dir(config)
    (folder / "metrics.jsonl").write_text("{}\n")
    release_if_unused(folder)
    with pytest.raises(ConfigError, match="already holds a run"):
        create_run_dir(config)


def test_a_folder_with_a_group_to_train_stays_claimed(tmp_path):
    """Its first batch may have taken hours, and the disk have been full when it was trained."""
    config = Config(run=str(tmp_path / "mine"))
    folder, _ = create_run_dir(config)
    with closing(EpisodeLog(folder / "episodes.db")) as log:
        group = make_group("a", [0])
        asyncio.run(log.add_group(Task(group.task_id, 0), 0, group))
    release_if_unused(folder)
    with pytest.raises(ConfigError, match="already holds a run"):
        create_run_dir(config)


def test_an_unwritable_place_is_explained(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot create the run folder"):
        create_run_dir(Config(run=str(tmp_path / "file" / "run")))


def test_ids_become_file_names():
    assert file_name("my_pkg.envs:Üb/er-v1") == "my-pkg-envs--b-er-v1"
    assert file_name("::") == "run"


class Described(SeededTasks):
    """Tasks with a description."""

    def describe(self):
        return {"rows": 3}


def test_tasks_with_a_description_leave_it_in_the_folder(tmp_path):
    record_tasks(tmp_path, SeededTasks("train"))
    assert not (tmp_path / TASKS).exists()
    record_tasks(tmp_path, Described("train"))
    assert json.loads((tmp_path / TASKS).read_text()) == {"rows": 3}


def test_the_configuration_of_a_run_is_found_and_its_absence_explained(tmp_path):
    with pytest.raises(ConfigError, match=r"no folder .*nowhere here"):
        config_of(tmp_path / "nowhere", "nowhere")
    with pytest.raises(ConfigError) as no_run:
        config_of(tmp_path, "x")
    assert "so it is not a run folder" in str(no_run.value)
    (tmp_path / "episodes.db").touch()
    with pytest.raises(ConfigError, match=f"{MARK} is missing in .*put it back"):
        config_of(tmp_path, "x")
    (tmp_path / MARK).touch()
    assert config_of(tmp_path, "x") == tmp_path / MARK


def test_a_build_covers_every_package_of_the_distribution(tmp_path, monkeypatch):
    package = tmp_path / "some_extension"
    package.mkdir()
    (package / "__init__.py").write_text("COEF = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("agentgym_rl.runtime.log.OURS", ("agentgym_rl", "some_extension", "absent"))
    first = build.__wrapped__()
    assert build.__wrapped__() == first
    (package / "__init__.py").write_text("COEF = 2\n")
    assert build.__wrapped__() != first
