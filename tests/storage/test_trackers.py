"""Experiment trackers: the real packages get what metrics.jsonl gets, and cannot end a run."""

import logging
import math
import re
import sys
import time

import pytest
from arl_trackers.trackers import Trackers, open_trackers

from agentgym_rl.config import Config
from agentgym_rl.config.cluster import LoggingConfig
from agentgym_rl.core import ConfigError, install_command

STEPS = [{"reward/mean": 0.25, "loss": -1.0, "overlap": math.nan}, {"reward/mean": 0.5}]


def opened(names, folder) -> Trackers:
    config = Config(logging=LoggingConfig(trackers=names, project="shop"))
    return open_trackers(config, folder)


def log_steps(names, folder) -> None:
    folder.mkdir()
    trackers = opened(names, folder)
    for step, metrics in enumerate(STEPS):
        trackers.log(step, metrics)
    trackers.log(2, {"eval/reward": 0.75})
    trackers.close()
    trackers.close()


def test_tensorboard_reads_what_was_logged(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log_steps(("tensorboard",), tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    tags = events.Tags()["tensors"]
    assert sorted(tags) == ["eval/reward", "loss", "reward/mean"]
    found = [(e.step, e.tensor_proto.float_val[0]) for e in events.Tensors("reward/mean")]
    assert found == [(0, 0.25), (1, 0.5)]


def test_trackio_reads_what_was_logged(tmp_path, monkeypatch, capsys):
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    for module in ("trackio.sqlite_storage", "trackio.utils"):
        monkeypatch.setattr(sys.modules[module], "TRACKIO_DIR", tmp_path / "trackio")
    log_steps(("trackio",), tmp_path / "run")
    assert capsys.readouterr().out == ""  # stdout is the command's own
    assert trackio.__version__
    logs = SQLiteStorage.get_logs("shop", "run")
    assert [(log["step"], log.get("reward/mean")) for log in logs[:2]] == [(0, 0.25), (1, 0.5)]
    assert logs[2]["eval/reward"] == 0.75


@pytest.fixture
def fresh_wandb():
    """It reads its environment once in a process."""
    import wandb

    wandb.teardown()
    yield
    wandb.teardown()


@pytest.mark.slow
def test_wandb_gets_what_was_logged(tmp_path, monkeypatch, capsys, fresh_wandb):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    log_steps(("wandb",), tmp_path / "run")
    assert capsys.readouterr().out == ""
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    parts = (b"reward/mean", b"eval/reward", b"shop", b"groups_per_batch")
    end = time.monotonic() + 60  # its own process writes
    while not all(part in file.read_bytes() for part in parts):
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_a_tracker_that_does_not_let_us_in_is_a_config_error(tmp_path, monkeypatch, fresh_wandb):
    monkeypatch.setenv("WANDB_MODE", "no such mode")
    with pytest.raises(ConfigError, match=r"logging\.trackers: wandb cannot be opened"):
        opened(("tensorboard", "wandb"), tmp_path)


def test_a_package_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=re.escape(install_command("wandb"))):
        opened(("wandb",), tmp_path)


class Breaks:
    def log(self, step, metrics) -> None:
        raise OSError("no space left on device")

    def close(self) -> None:
        raise AssertionError("it is no longer a tracker of the run")


class Notes:
    def __init__(self) -> None:
        self.steps: list[int] = []

    def log(self, step, metrics) -> None:
        self.steps.append(step)

    def close(self) -> None:
        self.steps.append(-1)


def test_one_that_breaks_is_left_out_and_the_others_go_on(caplog):
    notes = Notes()
    trackers = Trackers({"broken": Breaks(), "notes": notes})
    with caplog.at_level(logging.WARNING):
        trackers.log(0, {"loss": 1.0})
        trackers.log(1, {"loss": 1.0})
        trackers.close()
    assert notes.steps == [0, 1, -1]
    assert [record.message for record in caplog.records] == [
        "broken gets no more metrics of this run: OSError('no space left on device')"
    ]
