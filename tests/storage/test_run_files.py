"""The files of a run whose loop is in this process."""

import asyncio
import json
import math
import sqlite3
from contextlib import closing

from agentgym_rl.config import Config
from agentgym_rl.core import StepReport
from agentgym_rl.storage.recovery import NOTHING, Recovered
from agentgym_rl.storage.run_files import Run, begun
from agentgym_rl.storage.run_folder import MARK


def test_a_new_run_begins_its_log_and_has_its_files(tmp_path):
    folder, model = tmp_path / f"run-{tmp_path.name}", tmp_path / "model"
    folder.mkdir()
    report = StepReport(0, 1, {"loss": 0.5, "overlap": math.nan}, [], ["a"])
    with Run.opened(Config(), folder, model_dir=model) as run:
        assert (run.folder, run.config_file, run.model_dir) == (folder, folder / MARK, model)
        assert run.weights.is_dir()
        assert run.recovered is NOTHING
        assert run.step == 0
        asyncio.run(run.record(report))
    assert not run.weights.exists()
    with closing(sqlite3.connect(folder / "episodes.db")) as db:
        begins = db.execute("SELECT incarnation, step, checkpoint, num_ranks FROM incarnations")
        assert begins.fetchall() == [(0, 0, "", 1)]
        (metrics,) = (json.loads(text) for (text,) in db.execute("SELECT metrics FROM steps"))
    line = json.loads((folder / "metrics.jsonl").read_text())
    assert line == {"step": 0, **metrics} == {"step": 0, "loss": 0.5, "overlap": None}


def test_a_run_continues_from_the_state_that_its_log_begins_with(tmp_path):
    folder = tmp_path / f"run-{tmp_path.name}"
    folder.mkdir()
    state = Recovered(step=3)

    def begin(log):
        assert begun(log) is NOTHING
        return state

    with Run.opened(Config(), folder, model_dir=tmp_path, begin=begin) as run:
        assert (run.recovered, run.step) == (state, 3)
