"""`arl serve` as its users have it: a run in one process, programs that play in others."""

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from arl_audit.exactly_once import audit_ledger

from agentgym_rl.storage.run_list import summary

from .forked import ForkedArl

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MOVING = ("--algo.kl.coef=0.1", "--algo.kl.reference=initial", "--algo.kl.refresh_every=1")
SMALL = ("--rollout.group_size=2", "--rollout.groups_per_batch=1", "--logging.progress=plain")


@pytest.fixture
def serve(tmp_path):
    """Start `arl serve`; returns its process and folder once sessions can be opened."""
    started = []

    def start(*flags, resume=False):
        folder = tmp_path / "run"
        told = folder / "serve.json"
        before = told.stat().st_mtime_ns if resume else 0
        where = [f"--resume={folder}"] if resume else [f"--run={folder}", *SMALL]
        process = ForkedArl("serve", "--json", *where, *flags)
        started.append(process)
        end = time.monotonic() + 120
        while not told.exists() or told.stat().st_mtime_ns == before:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.1)
        return process, folder

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=60)


def play(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def wait_for_steps(folder, count):
    end = time.monotonic() + 60
    while len((folder / "metrics.jsonl").read_text().splitlines()) < count:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_shell_script_with_curl_is_trained_on_before_and_after_a_kill(serve):
    process, folder = serve("--steps=2", *MOVING)
    assert stat.S_IMODE(os.stat(folder / "serve.json").st_mode) == 0o600
    key = json.loads((folder / "serve.json").read_text())["admin_key"]
    play("bash", ROOT / "examples/online/play.sh", folder)
    wait_for_steps(folder, 1)
    process.kill()
    process.communicate(timeout=60)
    process, folder = serve(resume=True)
    assert json.loads((folder / "serve.json").read_text())["admin_key"] == key
    play("bash", ROOT / "examples/online/play.sh", folder)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert (result["steps"], result["outcomes"]) == (2, {"completed": 2})
    assert audit_ledger(folder)["faults"] == []
    assert (folder / "export/model.safetensors").exists()
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    # The reference is the policy again after each batch; one that stays is 0.04 away at the second.
    assert max(m["policy/kl_reference"] for m in metrics) < 1e-6
    assert key not in out + err
    with sqlite3.connect(folder / "episodes.db") as db:
        assert db.execute("SELECT count(*) FROM trajectories").fetchone() == (4,)
        ids = [id for (id,) in db.execute("SELECT group_id FROM groups ORDER BY rowid")]
        assert ids == ["g0", "g1.1"]
        assert db.execute("SELECT DISTINCT task_id FROM groups").fetchone() == ("add-17-25",)


def ask(url, key, body=None):
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as answer:
        return json.load(answer)


def session(folder, *, task, reward):
    """Play a session of one turn; returns what it came to, and the address it can be asked at."""
    told = json.loads((folder / "serve.json").read_text())
    sessions, key = f"{told['admin_url']}/sessions", told["admin_key"]
    opened = ask(sessions, key, {"task": task})
    messages = [{"role": "user", "content": "1 + 2 = ?"}]
    ask(
        f"{opened['base_url']}/chat/completions",
        opened["api_key"],
        {"model": "policy", "messages": messages, "max_tokens": 4},
    )
    return ask(f"{sessions}/{opened['id']}/close", key, {"reward": reward}), opened["id"]


def test_sessions_that_were_closed_before_a_kill_are_trained_on_after_it(serve):
    process, folder = serve("--steps=2")
    closed, name = session(folder, task="half", reward=0.5)
    for reward in (0.0, 1.0):
        session(folder, task="whole", reward=reward)
    wait_for_steps(folder, 1)
    process.kill()
    process.communicate(timeout=60)
    process, folder = serve(resume=True)
    told = json.loads((folder / "serve.json").read_text())
    assert ask(f"{told['admin_url']}/sessions/{name}", told["admin_key"]) == closed
    session(folder, task="half", reward=0.25)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert json.loads(out)["steps"] == 2
    assert audit_ledger(folder)["faults"] == []
    with sqlite3.connect(folder / "episodes.db") as db:
        query = "SELECT reward, episode_id FROM trajectories WHERE group_id = 'g0' ORDER BY rowid"
        assert list(db.execute(query)) == [(0.5, "g0-0"), (0.25, "g0-0.1")]


def test_a_player_of_an_environment_is_trained_on_and_a_run_can_be_interrupted(serve):
    process, folder = serve("--steps=50")
    play(sys.executable, ROOT / "examples/online/player.py", folder, "--groups", "3")
    wait_for_steps(folder, 3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"arl: interrupted; {folder} keeps what there is; continue with arl serve" in err
    found = summary(folder)
    assert (found.kind, found.agent, found.state) == ("serve", "", "stopped")


def test_a_host_that_others_reach_needs_a_key(tmp_path):
    command = [sys.executable, "-m", "agentgym_rl", "serve", f"--run={tmp_path / 'run'}"]
    environment = {k: v for k, v in os.environ.items() if k != "ARL_ADMIN_KEY"}
    done = subprocess.run(
        [*command, "--gateway.host=0.0.0.0"],
        capture_output=True, text=True, timeout=60, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "ARL_ADMIN_KEY" in done.stderr
    assert not (tmp_path / "run").exists()
