"""`arl train --cluster ray` on nodes with networks of their own, one of which is cut off."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from arl_audit.exactly_once import audit_ledger

pytest.importorskip("ray", reason="needs the extra 'ray'")

from scripts.ray_nodes import Failed, RayNodes, check_machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
STARTS_S, ENDS_S = 240, 300

COMMAND = (
    *(sys.executable, "-m", "agentgym_rl"),
    *("train", "--json", "--env=math", "--agent=react", "--cluster=ray"),
    *("--steps=40", "--eval.num_tasks=0", "--logging.plot=false", "--logging.progress=plain"),
    *("--rollout.groups_per_batch=2", "--rollout.group_size=4", "--rollout.workers=1"),
)


@pytest.fixture(scope="module")
def nodes():
    try:
        check_machine()
    except Failed as error:
        pytest.skip(str(error))
    with RayNodes(4, cpus=1) as nodes:
        yield nodes


def _worker(run: Path) -> int | None:
    """Pid of the run's rollout worker."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_text()
            except OSError:
                continue
            if f"\0rollout\0--config\0{run}/" in line:
                return int(entry.name)
    return None


def test_a_worker_whose_node_is_cut_off_is_replaced_on_another(nodes, tmp_path):
    run, said = tmp_path / "run", tmp_path / "said"
    with said.open("w") as errors:
        process = subprocess.Popen(
            nodes.command(
                [*COMMAND, f"--address={nodes.address}", f"--run={run}", "--cluster.nodes=5"]
            ),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "ARL_ADMIN_KEY": ""},
        )
        try:
            _until(lambda: _batches(run) >= 2, process, said)
            pid = _worker(run)
            assert pid is not None
            lost = nodes.node_of(pid)
            nodes.cut(lost)
            out, _ = process.communicate(timeout=ENDS_S)
        finally:
            process.kill()
            process.wait(10)
    assert process.returncode == 0, said.read_text()
    result = json.loads(out)  # Ray, which says that a node is dead, says it elsewhere
    assert result["steps"] == 40
    assert result["worker_restarts"] == 1
    assert "silent for" in said.read_text()
    report = audit_ledger(run)
    assert report["faults"] == []


def _batches(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def _until(condition, process, said):
    end = time.monotonic() + STARTS_S
    while not condition():
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < end, said.read_text()
        time.sleep(0.1)
