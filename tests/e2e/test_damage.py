"""Each file of a killed run, damaged in each way: the run goes on from what is whole, or refuses in
one sentence. The table of docs/recovery.md."""

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from arl_audit.exactly_once import audit_ledger

from agentgym_rl.cli.parse import parse
from agentgym_rl.cli.training import training_configuration
from agentgym_rl.core import ConfigError
from agentgym_rl.rollout import env_spec
from agentgym_rl.run.resume import begin, check_kept
from agentgym_rl.storage import EpisodeLog, EvalRecords

from .conftest import Run
from .forked import arl

pytestmark = pytest.mark.slow

SMALL = (
    *("--steps=9", "--eval.num_tasks=2", "--eval.every=4", "--logging.plot=false"),
    *("--rollout.groups_per_batch=2", "--rollout.group_size=4", "--rollout.max_staleness=0"),
    *("--trainer.checkpoint_every=2", "--trainer.keep_checkpoints=3"),
)


def flipped(whole: bytes) -> bytes:
    """The same size, with up to a kilobyte in the middle changed."""
    middle, size = len(whole) // 2, min(1024, max(1, len(whole) // 4))
    changed = bytes(byte ^ 0x5A for byte in whole[middle : middle + size])
    return whole[:middle] + changed + whole[middle + size :]


DAMAGES: dict[str, Callable[[bytes], bytes] | None] = {
    "truncated": lambda whole: whole[: len(whole) // 2],
    "zeroed": lambda whole: bytes(len(whole)),
    "flipped": flipped,
    "missing": None,
}
FIRST, NEWEST = "goes on", "from the checkpoint before"
OUTCOMES: dict[str, str | tuple[str, ...]] = {
    "metrics.jsonl": FIRST,
    "phases.jsonl": FIRST,
    "tokens/step-000003.rank-0.npz": FIRST,
    "evaluations.jsonl": FIRST,
    "evaluations/step-4.json": FIRST,
    "evaluations/step-4/episodes.db": FIRST,
    "lock": FIRST,
    "control.json": FIRST,
    "checkpoints/step-6/manifest.json": NEWEST,
    "checkpoints/step-6/.metadata": NEWEST,
    "checkpoints/step-6/__0_0.distcp": NEWEST,
    "checkpoints/*/__0_0.distcp": ("no checkpoint in", "remove the folder checkpoints"),
    "checkpoints/*/manifest.json": ("no checkpoint in", "remove the folder checkpoints"),
    "config.toml": ("config.toml is", "put it back from a copy, or begin a new run"),
    # Its second half may hold nothing but episodes that were trained long ago.
    "episodes.db": ("episodes.db is", "put it back from a copy, or begin a new run", FIRST),
    "episodes.db-wal": ("episodes.db", "put it back from a"),
}
"""What is expected of a file, whatever its damage: words of the refusal, or where it goes on. With
`FIRST` among the words both may be."""


@pytest.fixture(scope="module")
def died(tmp_path_factory) -> Path:
    """The folder of a run that was killed after its seventh batch."""
    run = Run(tmp_path_factory.mktemp("died") / "run", *SMALL)
    try:
        run.wait_for_step(6)
    finally:
        run.process.kill()
        run.process.communicate(timeout=60)
    return run.folder


def resumed_from(folder: Path) -> int | str:
    """The step that `arl train --resume` goes on from, or its refusal."""
    try:
        config = training_configuration(parse(["train", "--resume", str(folder)]))
        spec = env_spec(config.env, config.rollout)
        checkpoint = check_kept(folder, config, spec.task_source("train", seed=config.seed))
        with closing(EpisodeLog(folder / "episodes.db")) as log:
            found = begin(
                folder,
                log,
                checkpoint,
                num_ranks=config.trainer.num_ranks,
                num_steps=config.steps,
            )
    except ConfigError as error:
        return str(error)
    EvalRecords(folder).mend()
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == found.step
    return found.step


def test_every_file_damaged_in_every_way(died, tmp_path):
    assert resumed_from(shutil.copytree(died, tmp_path / "whole")) == 6
    wrong: list[str] = []
    for name, expected in OUTCOMES.items():
        for damage, change in DAMAGES.items():
            folder = shutil.copytree(died, tmp_path / "copy")
            if name == "episodes.db":
                with closing(sqlite3.connect(folder / name)) as log:
                    log.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            for path in folder.glob(name):
                whole = path.read_bytes()
                path.unlink() if change is None else path.write_bytes(change(whole))
            found = resumed_from(folder)
            words = (expected,) if isinstance(expected, str) else expected
            went_on = {6: FIRST, 4: NEWEST}.get(found) if isinstance(found, int) else None
            said = [word for word in words if word not in (FIRST, NEWEST)]
            refused = isinstance(found, str) and said and all(word in found for word in said)
            if not (went_on in words or (refused and "\n" not in str(found))):
                wrong.append(f"{name} {damage}: {found!r}, expected {expected!r}")
            shutil.rmtree(folder)
    assert not wrong, "\n".join(wrong)


def test_a_checkpoint_damaged_inside_costs_the_batches_after_the_one_before(died, tmp_path):
    folder = shutil.copytree(died, tmp_path / "run")
    file = folder / "checkpoints/step-6/__0_0.distcp"
    file.write_bytes(flipped(file.read_bytes()))
    refused = arl("export", "--model", folder / "checkpoints/step-6", "--out", tmp_path / "out")
    assert (refused.returncode, "step-6 is damaged: __0_0.distcp" in refused.stderr) == (1, True)
    done = arl("train", "--resume", folder, "--json")
    assert done.returncode == 0, done.stderr
    assert "skipping a checkpoint" in done.stderr
    assert json.loads(done.stdout)["resumed_from"] == 4
    assert audit_ledger(folder)["faults"] == []


def test_a_stopped_fork_server_costs_a_run_nothing(start):
    run = start(*SMALL, executed=True)
    run.wait_for_step(1)
    (server,) = {parent_of(run.child("trainer")), parent_of(run.child("--index 0"))}
    os.kill(server, signal.SIGSTOP)
    os.kill(run.child("trainer"), signal.SIGKILL)
    code, out, err = run.wait()
    assert code == 0, err
    assert f"the fork server (pid {server})" in err
    assert json.loads(out)["trainer_restarts"] == 1
    assert audit_ledger(run.folder)["faults"] == []


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
