"""What `arl inspect` shows of tokens that several ranks trained, some of them in a run that was
killed and went on."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import numpy as np
import pytest

from agentgym_rl.algo import episode_advantages
from agentgym_rl.storage import EpisodeReader

from .forked import arl

pytestmark = pytest.mark.slow

SMALL = (
    "--algo.baseline=leave_one_out",
    "--algo.scale=none",
    "--steps=5",
    "--eval.num_tasks=0",
    "--logging.plot=false",
    "--trainer.num_ranks=2",
    "--trainer.checkpoint_every=2",
    "--rollout.groups_per_batch=2",
)


@contextmanager
def inspected(run: Path) -> Iterator[Callable[[str], Any]]:
    """Asks a served inspector about the run."""
    command = [sys.executable, "-m", "agentgym_rl", "inspect", str(run), "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        base = f"{json.loads(server.stdout.readline())['url']}api/runs/{run.name}"
        yield lambda path: json.load(urlopen(f"{base}/{path}", timeout=30))
    finally:
        server.terminate()
        server.communicate(timeout=60)


def spoil(run: Path) -> dict[str, bytes]:
    """Add 100 to all that was kept, and a file of a rank that there is not; what was there."""
    before = {path.name: path.read_bytes() for path in (run / "tokens").glob("*.npz")}
    for name in before:
        path = run / "tokens" / name
        with np.load(path) as file:
            found = dict(file)
        found |= {key: found[key] + np.float32(100) for key in ("proximal", "advantages")}
        np.savez(path, **found)
    np.savez(run / "tokens" / "step-000004.rank-2.npz", **found)
    return before


def check_batch(step: int, groups: dict[str, list[str]], ask, metrics: dict[str, float]) -> int:
    """Every trained token has its numbers, and they are those of the step that counted; how many
    tokens there are."""
    shown = {id: ask(f"episodes/{quote(id)}") for ids in groups.values() for id in ids}
    assert {it["step"] for it in shown.values()} == {step}
    rewards = [it["reward"] for it in shown.values()]
    of = [group for group, ids in groups.items() for _ in ids]
    due = episode_advantages(rewards, of, baseline="leave_one_out", scale="none")
    gaps, count = [0.0], 0
    for episode, advantage in zip(shown.values(), due.tolist(), strict=True):
        for row in episode["rows"]:
            trains = np.array(row["trains"], bool)
            # A row without an advantage takes no pass, and has no proximal log-probs.
            passed = trains & (abs(advantage) > 1e-9)
            for name, due_at in {"advantage": trains, "proximal": passed}.items():
                kept = [value is not None for value in row[name]]
                assert kept == due_at.tolist(), (step, episode["id"], name)
            values = np.array(row["advantage"], float)[trains]
            assert values == pytest.approx(advantage, abs=1e-6)
            both = [np.array(row[name], float)[passed] for name in ("proximal", "behavior")]
            gaps += np.abs(both[0] - both[1]).tolist()
            count += int(trains.sum())
    assert max(gaps) == pytest.approx(metrics.get("mismatch/max_abs", 0), rel=1e-4, abs=1e-6)
    for group, ids in groups.items():
        members = ask(f"groups/{group}")["members"]
        assert sorted(it["id"] for it in members) == sorted(ids)
        means = {it["id"]: it["advantage"] for it in members}
        assert [means[id] for id in shown if id in means] == pytest.approx(
            [a for a, id in zip(due.tolist(), shown, strict=True) if id in means], abs=1e-6
        )
    return count


def test_each_trained_token_has_its_numbers_once_and_of_the_step_that_counted(start):
    run = start(*SMALL)
    run.wait_for_step(3)  # the checkpoint of two batches is complete, the next is of four
    os.kill(run.process.pid, signal.SIGKILL)
    run.wait(60)
    before = spoil(run.folder)
    done = arl("train", "--resume", run.folder, "--json")
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)["resumed_from"]
    assert first in (2, 4)
    for name, data in before.items():  # of steps before the checkpoint they count
        if int(name[5:11]) < first:
            (run.folder / "tokens" / name).write_bytes(data)
    with closing(EpisodeReader(run.folder / "episodes.db")) as log:
        batches = log.batches()
    names = {path.name for path in (run.folder / "tokens").iterdir()}
    assert names == {f"step-{step:06}.rank-{rank}.npz" for step in range(5) for rank in (0, 1)}
    with inspected(run.folder) as ask:
        metrics = {row["step"]: row for row in ask("metrics")["rows"]}
        counts = [check_batch(step, batches[step], ask, metrics[step]) for step in range(5)]
        shown = [name for _, _, name in ask("timeline?steps=0-4")["batches"]]
    for step, count in enumerate(counts):
        files = [np.load(run.folder / "tokens" / f"step-{step:06}.rank-{r}.npz") for r in (0, 1)]
        assert sum(int(file["lengths"].sum()) for file in files) == count
        assert all(len(file["rows"]) for file in files), "each rank trained something"
    assert set(shown) == {str(step) for step in range(5)}
