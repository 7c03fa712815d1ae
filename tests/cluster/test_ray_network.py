"""`arl train --cluster ray` on nodes with networks of their own, one of which is cut off."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from arl_audit.exactly_once import audit_ledger

pytest.importorskip("ray", reason="needs the extra 'ray'")

from scripts.ray_nodes import NAMESPACE, Failed, RayNodes, check_machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
STARTS_S, ENDS_S = 240, 300

COMMAND = (
    *(sys.executable, "-m", "agentgym_rl"),
    *("train", "--json", "--env=math", "--agent=react", "--cluster=ray"),
    *("--steps=40", "--eval.num_tasks=0", "--logging.plot=false", "--logging.progress=plain"),
    *("--rollout.groups_per_batch=2", "--rollout.group_size=4", "--rollout.workers=1"),
)


RANKS = ("--cluster.allocation=embedded:d1+fsdp:d2", "--trainer.checkpoint_every=3")


@pytest.fixture
def nodes():
    try:
        check_machine()
    except Failed as error:
        pytest.skip(str(error))
    with RayNodes(5, cpus=1) as nodes:
        yield nodes


def _process(run: Path, command: str) -> int | None:
    """Pid of a process of the run."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_text()
            except OSError:
                continue
            if f"\0{command}\0--config\0{run}/" in line:
                return int(entry.name)
    return None


@pytest.mark.parametrize(
    ("command", "flags", "restarts"),
    [("rollout", (), "worker_restarts"), ("trainer", RANKS, "trainer_restarts")],
)
def test_what_is_on_a_node_that_is_cut_off_is_replaced(nodes, tmp_path, command, flags, restarts):
    run, said = tmp_path / "run", tmp_path / "said"
    with said.open("w") as errors:
        process = subprocess.Popen(
            nodes.command(
                [
                    *COMMAND,
                    f"--address={nodes.address}",
                    f"--run={run}",
                    "--cluster.nodes=6",
                    *flags,
                ]
            ),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "ARL_ADMIN_KEY": ""},
        )
        try:
            _until(lambda: _batches(run) >= 2, process, said)
            pid = _process(run, command)
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
    assert result[restarts] == 1
    assert "silent for" in said.read_text()
    report = audit_ledger(run)
    assert report["faults"] == []


@pytest.mark.skipif(not shutil.which("iptables"), reason="needs iptables")
def test_a_firewall_before_the_ranks_is_named(nodes, tmp_path):
    """The nodes give ports of their own range from now on, and none of it to the head."""
    for number in range(1, 6):
        inside = ["ip", "netns", "exec", NAMESPACE.format(number)]
        ports = "net.ipv4.ip_local_port_range=50000 50999"
        subprocess.run([*inside, "sysctl", "-qw", ports], check=True)
        drop = "-A INPUT -p tcp -s 10.213.47.1 --dport 50000:50999 --syn -j DROP"
        subprocess.run([*inside, "iptables", *drop.split()], check=True)
    done = subprocess.run(
        nodes.command(
            [*COMMAND, f"--address={nodes.address}", f"--run={tmp_path / 'run'}", *RANKS]
        ),
        capture_output=True,
        text=True,
        timeout=STARTS_S,
    )
    assert done.returncode == 1
    assert "cannot reach it: no answer in 10 s. Let that host connect" in done.stderr


def _batches(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def _until(condition, process, said):
    end = time.monotonic() + STARTS_S
    while not condition():
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < end, said.read_text()
        time.sleep(0.1)
