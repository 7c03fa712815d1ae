"""The Slurm job: its script, and a run on a real one."""

import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest
from arl_scale.slurm import cpus_per_node, script

from agentgym_rl.cluster import Demand
from agentgym_rl.cluster.resources import demands
from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError
from tests.kit.cases import cases


def job(tmp_path, **keys):
    overrides = {
        "cluster.type": "slurm",
        "cluster.allocation": "embedded:d2+fsdp:d2",
        **{f"cluster.{key}": value for key, value in keys.items()},
    }
    config = load_config(None, overrides)
    asked = demands(config, gpus=False)
    return script(config.cluster, asked, tmp_path / "run", ["arl", "train", "it's"])


def test_the_script_asks_for_what_the_run_needs(tmp_path):
    text = job(tmp_path, nodes=2, sbatch=["--partition=small"])
    options = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert options == [
        "#SBATCH --job-name=arl-run",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=3",
        f"#SBATCH --output={tmp_path}/run/slurm.log",
        "#SBATCH --partition=small",
    ]
    assert "exec arl train 'it'\"'\"'s' --cluster ray" in text
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0


def test_one_node_has_no_workers(tmp_path):
    assert "--exclude" not in job(tmp_path)
    assert "--exclude" in job(tmp_path, nodes=2)


@cases(
    "asked, nodes, gpus, cpus",
    [
        ([Demand("engine", 2, 1), Demand("trainer", 2, 1)], 1, 0, 4),
        ([Demand("engine", 2, 3), Demand("trainer", 2, 1)], 2, 0, 4),
        ([Demand("engine", 1, 4), Demand("trainer", 3, 1)], 2, 0, 4),
        ([Demand("engine", 2, 1, 2), Demand("trainer", 4, 2, 1)], 2, 4, 8),
        ([], 3, 0, 0),
    ],
    ids=["one", "two", "uneven", "gpus", "none"],
)
def test_as_few_cpus_as_will_do(asked, nodes, gpus, cpus):
    assert cpus_per_node(asked, nodes=nodes, gpus=gpus) == cpus


def test_too_few_gpus_are_refused_with_the_table():
    with pytest.raises(ConfigError, match=r"(?s)no node is so large.*missing"):
        cpus_per_node([Demand("engine", 1, 1, 4)], nodes=2, gpus=2)


def slurm_is_here():
    if not shutil.which("sbatch") or find_spec("ray") is None:
        return False
    return "idle" in subprocess.run(["sinfo"], capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(not slurm_is_here(), reason="no idle Slurm node (scripts/slurm-here.sh) or Ray")
def test_a_run_as_a_job(tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "-m", "agentgym_rl", "train", "--cluster=slurm", f"--run={run}"]
    small = ["--steps=2", "--eval.num_tasks=0", "--rollout.groups_per_batch=2"]
    env = {**os.environ, "SBATCH_EXPORT": "ALL"}
    asked = subprocess.run([*command, *small], capture_output=True, text=True, env=env)
    assert asked.returncode == 0, asked.stderr
    number = asked.stdout.split(":")[0].split()[-1]
    end = time.monotonic() + 280
    while _state(number) in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING"):
        assert time.monotonic() < end, (run / "slurm.log").read_text()
        time.sleep(1)
    log = (run / "slurm.log").read_text()
    assert _state(number) in ("COMPLETED", ""), log
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2, log


def _state(number):
    asked = ["squeue", "--noheader", "--states=all", f"--jobs={number}", "--format=%T"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip()
