"""Runs of earlier versions of the package go on, and every reader of runs reads them.

`old_runs/COMMIT.tar.xz` has a run of that commit that was killed after three batches (folder
`run`), and its model: `arl train --env parity:Parity --steps 6 --rollout.groups_per_batch=2
--rollout.group_size=4 --rollout.max_tokens=8 --trainer.checkpoint_every=2
--trainer.num_minibatches=1 --trainer.learning_rate=0.01 --algo.aggregation=sequence
--eval.num_tasks=0`, without `logs`.
"""

import json
import shutil
import sqlite3
import tarfile
from contextlib import closing, suppress
from pathlib import Path

import pytest
from arl_audit.exactly_once import audit_ledger
from arl_audit.recorded import replay_text
from arl_audit.replay_batch import replay
from arl_audit.sft import Wanted, export_sft
from arl_audit.trained_model import export_trained
from arl_inspect.folders import InspectedRun

from agentgym_rl.config import FORMAT, load_config
from agentgym_rl.config.records import LaterVersion
from agentgym_rl.core import ConfigError, SeededTasks, StorageError, TrainerError
from agentgym_rl.run import resumed_config
from agentgym_rl.run.resume import check_kept
from agentgym_rl.storage import EpisodeLog, EpisodeReader, read_manifest
from agentgym_rl.storage.run_folder import release_if_unused
from agentgym_rl.storage.run_list import summary
from tests.kit.cases import cases

from .forked import arl

KEPT = Path(__file__).parent / "old_runs"
COMMITS = sorted(file.name.split(".")[0] for file in KEPT.glob("*.tar.xz"))


@pytest.fixture(scope="module", params=COMMITS)
def kept(request, tmp_path_factory) -> Path:
    """The folder of an old run, which has been moved together with its model."""
    folder = tmp_path_factory.mktemp(request.param)
    with tarfile.open(KEPT / f"{request.param}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "run"


@pytest.fixture
def run(kept, tmp_path, monkeypatch) -> Path:
    monkeypatch.syspath_prepend(str(KEPT))
    shutil.copytree(kept.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


def test_keys_that_a_run_lacks_have_the_values_of_its_time(run):
    config = resumed_config(run, None, {})
    assert config.algo.behavior_clip == 1.0  # no such limit
    assert (config.engine.prefix_cache, config.engine.routing_replay) == ("off", "off")
    assert config.rollout.episode_timeout_s == 600.0
    assert config.model.path == str(run.parent / "model")
    assert check_kept(run, config, None) == run / "checkpoints" / "step-2"
    with pytest.raises(ConfigError, match=r"algo.behavior_clip is 0.3, not 1.0. Leave"):
        resumed_config(run, None, {"algo.behavior_clip": 0.3})


def test_a_users_own_file_need_not_name_the_keys_that_came_later(run, tmp_path):
    text = (run / "config.toml").read_text()
    text = text.replace("/home/then/runs/model", str(run.parent / "model"))
    again = tmp_path / "mine.toml"
    again.write_text(text)
    assert resumed_config(run, again, {}).algo.behavior_clip == 1.0
    again.write_text(text.replace("clip_low = 0.2", "clip_low = 0.2\nbehavior_clip = 0.2"))
    with pytest.raises(ConfigError, match=r"algo.behavior_clip is 0.2, not 1.0"):
        resumed_config(run, again, {})


def test_every_reader_reads_an_old_run(run, tmp_path):
    assert audit_ledger(run)["faults"] == []
    assert len(InspectedRun("run", run).metrics()["rows"]) == 3
    assert (summary(run).batches, summary(run).error) == (3, "")
    report = export_sft(run, tmp_path / "sft.jsonl", Wanted(min_reward=1.0))
    assert report["lines"] > 0
    exported = export_trained(run, tmp_path / "model-2")
    assert exported["version"] == 2


def test_a_replay_of_an_old_batch_has_its_loss_and_names_the_version(run):
    report = replay(run, step=2)
    [row] = report["batches"]
    assert row["loss"][0] == pytest.approx(row["loss"][1], rel=1e-5)
    assert (report["passed"], report["bit_for_bit"]) == (True, False)
    said = replay_text(report)
    assert "trained by an earlier version (format 0), which hashed weights in another way" in said
    with closing(sqlite3.connect(run / "episodes.db")) as log, log:
        log.execute("UPDATE steps SET metrics = '{\"loss\": 0.1}'")
    assert not replay(run, step=2)["passed"]


@pytest.mark.slow
def test_an_old_run_goes_on_to_its_end(run):
    done = arl("train", "--resume", run, "--json", env={"PYTHONPATH": str(KEPT)})
    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout)["steps"], json.loads(done.stdout)["resumed_from"]) == (6, 2)
    report = audit_ledger(run)
    assert (report["faults"], report["finished"], report["incarnations"]) == ([], True, 2)
    assert load_config(run / "config.toml").algo.behavior_clip == 1.0
    replayed = replay(run, step=5)
    assert (replayed["passed"], replayed["bit_for_bit"]) == (True, True)


def test_a_model_that_is_elsewhere_can_be_named(run, tmp_path):
    (run.parent / "model").rename(tmp_path / "there")
    config = resumed_config(run, None, {"model.path": str(tmp_path / "there")})
    assert check_kept(run, config, None) is not None
    with pytest.raises(ConfigError, match=r"began with is gone: .*model .*--model FOLDER"):
        resumed_config(run, None, {})


def copied(run: Path, to: Path) -> Path:
    for name in ("run", "model"):
        shutil.copytree(run.parent / name, to / name)
    return to / "run"


def later(run: Path, name: str) -> None:
    """Raises the format of one file of a run."""
    if name == "episodes.db":
        with closing(sqlite3.connect(run / name)) as log:
            log.execute(f"PRAGMA user_version={FORMAT + 1}")
        return
    file = run / name
    text = file.read_text()
    number = (
        f"format = {FORMAT + 1}\n{text}"
        if name.endswith("toml")
        else text.replace("{", f'{{"format": {FORMAT + 1},', 1)
    )
    file.write_text(number)


@cases(
    "name, read",
    [
        ("config.toml", lambda run: resumed_config(run, None, {})),
        ("config.toml", audit_ledger),
        ("config.toml", lambda run: replay(run, step=2)),
        ("config.toml", lambda run: export_trained(run, run / "out")),
        ("episodes.db", lambda run: check_kept(run, resumed_config(run, None, {}), None)),
        ("episodes.db", lambda run: EpisodeReader(run / "episodes.db")),
        ("episodes.db", lambda run: EpisodeLog(run / "episodes.db")),
        ("episodes.db", audit_ledger),
        ("episodes.db", lambda run: replay(run, step=2)),
        ("checkpoints/step-2/manifest.json", lambda run: replay(run, step=2)),
        ("checkpoints/step-2/manifest.json", lambda run: export_trained(run, run / "out")),
    ],
)
def test_files_of_a_later_version_are_refused_in_a_sentence(run, tmp_path, name, read):
    copy = copied(run, tmp_path)
    later(copy, name)
    with pytest.raises(LaterVersion, match=rf"has format {FORMAT + 1}, of a later version"):
        read(copy)


TABLES = ("tasks", "groups", "trajectories", "versions", "incarnations", "steps", "draws")


@cases("table", TABLES)
def test_a_log_that_lacks_a_table_is_refused(run, tmp_path, table):
    copy = copied(run, tmp_path)
    log = copy / "episodes.db"
    EpisodeLog(log).close()  # of this version now
    with closing(sqlite3.connect(log)) as db:
        db.execute(f"DROP TABLE {table}")
    config = resumed_config(copy, None, {})
    with pytest.raises(ConfigError, match=rf"it lacks the table {table}\).*put it back"):
        check_kept(copy, config, None)
    for read in (lambda: replay(copy, step=2), lambda: audit_ledger(copy)):
        with suppress(ConfigError):  # most readers need only some tables
            read()


def test_an_old_log_without_its_tables_is_refused(run):
    for table in ("steps", "groups", "tasks"):
        with closing(sqlite3.connect(run / "episodes.db")) as log:
            log.execute(f"DROP TABLE {table}")
        with pytest.raises(ConfigError, match=r"no such table|damaged"):
            check_kept(run, resumed_config(run, None, {}), SeededTasks(seed=1, split="train"))


def test_a_log_that_cannot_be_made_is_said_so(tmp_path):
    (tmp_path / "episodes.db").mkdir()
    with pytest.raises(StorageError, match=r"cannot be opened or made: unable to open"):
        EpisodeLog(tmp_path / "episodes.db")
    (tmp_path / "text").write_text("no database " * 99)
    with pytest.raises(StorageError, match=r"cannot be opened or made: file is not a database"):
        EpisodeLog(tmp_path / "text")
    release_if_unused(tmp_path)


def test_a_manifest_may_hold_anything(run):
    file = run / "checkpoints" / "step-2" / "manifest.json"
    for text in ("[" * 100_000, "[]", '{"step": "2"}', '{"step": 2, "files": []}', "\x00"):
        file.write_text(text)
        with pytest.raises(TrainerError, match="is no complete checkpoint"):
            read_manifest(file.parent)
