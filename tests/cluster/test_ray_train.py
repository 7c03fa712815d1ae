"""`arl train --cluster ray` as a user runs it, on two nodes that are on this machine."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from arl_audit.exactly_once import audit_ledger

ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
pytestmark = pytest.mark.slow

SMALL = (
    "--env=math",
    "--agent=react",
    "--steps=2",
    "--eval.num_tasks=16",
    "--rollout.groups_per_batch=4",
    "--rollout.group_size=4",
    "--logging.progress=plain",
    "--cluster.start_timeout_s=300",
)


COMMAND = (sys.executable, "-m", "agentgym_rl", "train", "--cluster=ray")


def arl(address, *words, timeout=240):
    return subprocess.run(
        [*COMMAND, f"--address={address}", *SMALL, *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "ARL_ADMIN_KEY": ""},
    )


def test_two_engines_and_two_ranks_on_two_nodes(ray_cluster, tmp_path):
    done = arl(
        ray_cluster.address,
        "--json",
        f"--run={tmp_path / 'run'}",
        "--cluster.allocation=embedded:d2+fsdp:d2",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 2
    logs = {log.name for log in (tmp_path / "run/logs").iterdir()}
    assert {"engine-0.log", "engine-1.log", "trainer-0.log", "trainer-1.log"} <= logs
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert not list((tmp_path / "run").glob(".seen-*"))
    assert not list((tmp_path / "run").glob("arl-*"))


def test_what_does_not_fit_is_refused_before_anything_is_written(ray_cluster, tmp_path):
    done = arl(
        ray_cluster.address, f"--run={tmp_path / 'run'}", "--cluster.allocation=embedded:d9+fsdp:d2"
    )
    assert done.returncode == 2, done.stderr
    assert "the cluster is too small" in done.stderr
    assert re.search(r"(?m)^missing +7 +0$", done.stderr)
    assert not (tmp_path / "run").exists()


def workers(run):
    """Pids of a run's rollout workers."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes().decode() if entry.name.isdigit() else ""
            if f"rollout\0--config\0{run}/" in line:
                found.append(int(entry.name))
    return found


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def nodes_of_workers():
    """The nodes of the one group of processes that is spread."""
    (nodes,) = [
        [*group["bundles_to_node_id"].values()]
        for group in ray.util.placement_group_table().values()
        if (group["strategy"], group["state"]) == ("SPREAD", "CREATED")
    ]
    return nodes


def test_rollout_workers_are_spread_over_nodes_and_replaced(ray_cluster, tmp_path):
    """The environment is a module of the folder in which `arl train` was started."""
    run = tmp_path / "run"
    (tmp_path / "my_math.py").write_text("from arl_envs.math import SPEC as MyMath\n")
    words = ("--json", f"--run={run}", "--steps=30", "--rollout.workers=2", "--env=my_math:MyMath")
    process = subprocess.Popen(
        [*COMMAND, f"--address={ray_cluster.address}", *SMALL, *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + 240
        metrics = run / "metrics.jsonl"
        while not (metrics.exists() and metrics.read_text()):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < end
            time.sleep(0.1)
        assert len(set(nodes_of_workers())) == 2
        first = workers(run)
        assert len(first) == 2
        os.kill(first[0], signal.SIGKILL)
        while len(metrics.read_text().splitlines()) < 4:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.1)
        host = parent(first[1])  # its network is cut, as it were: the worker itself goes on
        os.kill(host, signal.SIGSTOP)
        while first[1] in workers(run):
            assert time.monotonic() < end
            time.sleep(0.1)
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
        process.wait(10)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert (result["steps"], result["worker_restarts"]) == (30, 2)
    assert audit_ledger(run)["faults"] == []
    assert workers(run) == []


def test_engines_and_ranks_that_take_turns_have_one_place(ray_cluster, tmp_path):
    done = arl(
        ray_cluster.address,
        "--json",
        f"--run={tmp_path / 'run'}",
        "--cluster.allocation=embedded:d2|fsdp:d2",
    )
    assert done.returncode == 0, done.stderr
    assert "2 x engine + trainer of 2 CPU, 0 GPU" in done.stderr
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["overlap"] for line in lines] == [None, 0.0]
    logs = {log.name for log in (tmp_path / "run/logs").iterdir()}
    assert {"engine-0.log", "engine-1.log", "trainer-0.log", "trainer-1.log"} <= logs
