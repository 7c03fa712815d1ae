"""`arl reverify` on a run as it is made."""

import contextlib
import json
import os
from pathlib import Path

import pytest

from agentgym_rl.storage import EpisodeReader

from .forked import arl

pytestmark = pytest.mark.slow


def reverify(folder: Path, *args: str) -> tuple[int, dict]:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = arl("reverify", "--json", folder, *args, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def even_and_paid(folder: Path) -> set[str]:
    """Episodes that were paid for an even answer."""
    with contextlib.closing(EpisodeReader(folder / "episodes.db")) as reader:
        episodes = [reader.trajectory(id) for id in reader.episode_ids(untrained=True)]
        answers = {e.episode_id: int(reader.task(e.task_id).data["answer"]) for e in episodes}
    return {e.episode_id for e in episodes if e.reward and answers[e.episode_id] % 2 == 0}


def test_a_run_is_verified_and_so_is_a_change_of_the_verifier(start):
    run = start("--steps=2", "--eval.num_tasks=0")
    run.result()
    code, report = reverify(run.folder)
    assert (code, report["changed"], report["not_replayed"]) == (0, 0, 0)
    assert report["diverged"] == []
    assert report["unchanged"] == report["episodes"] >= 2 * 16
    code, report = reverify(run.folder, "--env.id=stricter:OddOnly")
    assert code == 1
    assert {row["episode"] for row in report["changes"]} == even_and_paid(run.folder) != set()
