"""`run.json`: what a folder holds, and how its last process ended."""

import asyncio
import json
from contextlib import closing

import pytest

from agentgym_rl.config import Config
from agentgym_rl.core import ConfigError, Task, TooManyErrors
from agentgym_rl.storage import EpisodeLog, RunEnd, recorded_end
from agentgym_rl.storage.run_end import end_of, kind_of_folder, one_line, place_of
from agentgym_rl.storage.run_folder import create_run_dir
from tests.kit.cases import cases
from tests.kit.groups import make_group


@pytest.fixture
def folder(tmp_path):
    return create_run_dir(Config(run=str(tmp_path / "runs" / "mine")))[0]


def ended(folder, error, *, kind="train", is_new=True, before=lambda: None) -> BaseException:
    """The error that comes out of a run that `error` ended."""

    def run() -> None:
        with recorded_end(folder, kind, is_new=is_new):
            before()
            raise error

    with pytest.raises(type(error)) as caught:
        run()
    return caught.value


def end(folder) -> RunEnd:
    found = end_of(folder)
    assert found is not None
    return found


def test_a_failed_run_keeps_its_folder_and_its_error(folder, monkeypatch):
    monkeypatch.chdir(folder.parent.parent)
    error = ended(folder, TooManyErrors("13 of 13 episodes failed"))
    assert (end(folder).state, end(folder).type) == ("failed", "TooManyErrors")
    assert end(folder).failure.startswith("13 of 13 episodes failed (")
    file, _, line = end(folder).where.rpartition(":")
    assert (file, line.isdigit()) == (__file__, True)
    assert end(folder).at_s > 0
    assert "continue with arl train --resume runs/mine" in error.__notes__[0]
    with pytest.raises(ConfigError, match="already holds a run: continue"):
        create_run_dir(Config(run=str(folder)))


def test_a_place_is_named_once():
    assert (
        RunEnd("failed", "x (mine.py, line 7, in run)", where="mine.py:7").failure.count("7") == 1
    )
    assert RunEnd("failed", "x", where="mine.py:7").failure == "x (mine.py:7)"
    assert RunEnd("failed", "x").failure == "x"


def test_the_cause_in_a_group_is_recorded(folder):
    cause = TooManyErrors("all failed")
    ended(folder, BaseExceptionGroup("", [TimeoutError("late"), cause]))
    assert (end(folder).message, end(folder).type) == ("all failed", "TooManyErrors")
    assert cause.__notes__


@cases("error", [asyncio.CancelledError(), KeyboardInterrupt()])
def test_an_interrupted_run_is_no_failure(folder, error):
    error = ended(folder, error, kind="serve")
    assert (end(folder).state, end(folder).failure) == ("interrupted", "")
    assert "arl serve --resume" in error.__notes__[-1]


def test_what_a_resume_trains_again_is_said(folder):
    def note() -> str:
        return ended(folder, KeyboardInterrupt(), is_new=False).__notes__[-1]

    assert note().endswith("--resume " + str(folder))
    (folder / "metrics.jsonl").write_text("{}\n" * 6)
    assert note().endswith(" (from batch 0: 6 batches are trained again from the log)")
    (folder / "checkpoints" / "step-5").mkdir(parents=True)
    assert note().endswith(" (from batch 5: 1 batch is trained again from the log)")
    (folder / "checkpoints" / "step-6").mkdir()
    assert note().endswith("--resume " + str(folder))


def test_a_run_that_goes_on_forgets_how_it_ended(folder):
    ended(folder, TooManyErrors("x"))
    with recorded_end(folder, "train", is_new=False):
        assert end_of(folder) is None
    assert end_of(folder) is None


def test_a_wrong_configuration_leaves_nothing(folder):
    def log() -> None:
        (folder / "logs").mkdir()
        (folder / "logs" / "trial.log").write_text("loading")

    error = ended(folder, ConfigError("no such device"), before=log)
    assert not folder.exists()
    assert not hasattr(error, "__notes__")


def test_files_of_the_user_stay(folder):
    (folder / "logs").mkdir()
    for name in ("notes.txt", "logs/mine.log"):
        (folder / name).touch()
    ended(folder, ConfigError("x"))
    assert {path.name for path in folder.iterdir()} == {"notes.txt", "logs"}
    assert (folder / "logs" / "mine.log").exists()


def add_episode(file) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with closing(EpisodeLog(file)) as log:
        group = make_group("a", [0])
        asyncio.run(log.add_evaluated(Task(group.task_id, 0), 0, group.members[0]))


@cases("name", ["episodes.db", "evaluations/step-0/episodes.db"])
def test_a_wrong_configuration_that_shows_late_removes_no_episode(folder, name):
    ended(folder, ConfigError("x"), before=lambda: add_episode(folder / name))
    assert (folder / name).exists()
    assert end(folder).state == "failed"


def test_a_resumed_run_is_never_removed(folder):
    ended(folder, ConfigError("x"), is_new=False)
    assert (folder / "config.toml").exists()
    assert end(folder).type == "ConfigError"


QUOTED = """13 of 13 episodes failed; the last one:
Traceback (most recent call last):
  File "/nowhere/of/mine.py", line 17, in run
    raise KeyError("plan")
  File "{ours}", line 3, in decorated
KeyError: 'plan'"""


def test_the_traceback_in_a_message_is_shortened_and_names_the_place():
    error = TooManyErrors(QUOTED.format(ours=asyncio.__file__))
    assert one_line(error) == "13 of 13 episodes failed; the last one: KeyError: 'plan'"
    assert place_of(error) == "/nowhere/of/mine.py:17"
    assert place_of(TooManyErrors("KeyError: 'plan' (mine.py, line 7, in run)\n  x")) == "mine.py:7"
    assert one_line(ConfigError("a\nb")) == "a"
    assert one_line(ValueError()) == "ValueError"
    assert len(one_line(ValueError("x" * 1000))) == 500


@cases("text", ["", "[]", "{", '{"kind": 7, "end": 7}', '{"kind": "x", "end": {"y": 1}}'])
def test_any_content_can_be_read(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    assert (end_of(tmp_path), kind_of_folder(tmp_path)) == (None, "train")


@cases("file, kind", [("serve.json", "serve"), ("evaluated.json", "eval")])
def test_folders_of_earlier_versions_are_known_by_their_files(tmp_path, file, kind):
    (tmp_path / file).write_text(json.dumps({}))
    assert kind_of_folder(tmp_path) == kind
