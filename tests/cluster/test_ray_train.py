"""`arl train --cluster ray` as a user runs it, on two nodes that are on this machine."""

import json
import os
import re
import subprocess
import sys

import pytest

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


def arl(address, *words, timeout=240):
    command = [sys.executable, "-m", "agentgym_rl", "train", "--cluster=ray"]
    return subprocess.run(
        [*command, f"--address={address}", *SMALL, *words],
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
