"""Engines that die during a run come back at the current version, and no episode pays for it."""

import os
import re
import signal
import sqlite3
import time
import urllib.request

import pytest

from .conftest import Run, descendants

pytestmark = pytest.mark.slow


def engines(run: Run) -> dict[int, int]:
    """Pids of the engine servers, by index."""
    lines = descendants(run.process.pid).items()
    words = {pid: line.split() for pid, line in lines if " engine " in line}
    return {int(line[line.index("--index") + 1]): pid for pid, line in words.items()}


def kill_in_mid_turn(run: Run, index: int) -> None:
    """SIGKILL the server while it is at work: one that idles would be missed by nobody."""
    pid = engines(run)[index]
    words = descendants(run.process.pid)[pid].split()
    url = f"http://127.0.0.1:{words[words.index('--port') + 1]}/metrics"
    end = time.monotonic() + 120
    while True:
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = re.search(r"^arl_engine_running (\d+)$", answer.read().decode(), re.M)
        assert found
        if int(found[1]) >= 4:
            return os.kill(pid, signal.SIGKILL)
        assert time.monotonic() < end
        time.sleep(0.005)


def outcomes(run: Run) -> set[str]:
    with sqlite3.connect(run.folder / "episodes.db") as db:
        return {row[0] for row in db.execute("SELECT DISTINCT outcome FROM trajectories")}


def test_one_of_two_servers_is_killed_and_comes_back(start):
    run = start("--steps=12", "--eval.num_tasks=0", "--engine.num_servers=2")
    run.wait_for_step(1)
    kill_in_mid_turn(run, 1)
    result = run.result()
    assert result["engines"]["restarts"] <= 1  # the run may be over before it is back
    assert result["engines"]["failovers"] >= 1
    assert outcomes(run) <= {"completed", "truncated"}
    assert set(result["outcomes"]) <= {"completed", "truncated"}


def test_the_only_server_is_killed_and_comes_back_at_the_current_version(start):
    run = start("--steps=8", "--eval.num_tasks=64")
    run.wait_for_step(2)
    os.kill(engines(run)[0], signal.SIGKILL)
    killed = time.monotonic()
    result = run.result()
    assert time.monotonic() - killed < 200
    assert result["engines"]["restarts"] == 1
    assert result["steps"] == 8
    assert set(result["outcomes"]) <= {"completed", "truncated"}


def test_a_server_that_keeps_dying_is_given_up(start):
    run = start("--steps=500", "--eval.num_tasks=0", "--engine.max_restarts=1")
    killed = None
    for _ in range(2):
        run.wait_for_step(len(run.metrics()) if run.folder.exists() and seen(run) else 0)
        end = time.monotonic() + 120
        while (pid := engines(run).get(0)) in (None, killed):
            assert time.monotonic() < end
            time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
        killed = pid
    code, _, err = run.wait()
    assert code == 1
    assert "no engine is left after 1 restarts each" in err
    assert "SIGKILL" in err


def seen(run: Run) -> bool:
    return (run.folder / "metrics.jsonl").exists()
