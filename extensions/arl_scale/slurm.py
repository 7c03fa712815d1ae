"""A Slurm job that starts Ray on its nodes, and a run on that cluster.

Ray has the nodes for as long as the job lasts: `srun` keeps one Ray node on each, which Slurm ends
with the job. The run replaces the batch shell, so the job's signals and exit code are the run's.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from agentgym_rl.cluster import Demand
from agentgym_rl.core import ConfigError

from .demand import Node, check
from .keys import NodeKeys

CONFIG = "slurm.toml"
"""The configuration of the run that the job does, in the run's folder."""
OWN_CPUS = 1
"""The CPUs added to each node for `arl train` on the first: gateway, agents, environments."""
SUBMIT_TIMEOUT_S = 60
_SCRIPT = """\
#!/bin/bash
{options}
set -euo pipefail
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # which srun does not take over by itself
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" hostname -I | awk '{{print $1}}')
port=$((20000 + SLURM_JOB_ID % 10000))  # a node may be another job's too
export ADDRESS="$address" PORT="$port" RAY_worker_niceness=0
wait_ray='timeout 120 bash -c "until (: <>/dev/tcp/$ADDRESS/$PORT); do sleep 1; done" 2>/dev/null'
node="{ray} start --num-cpus={cpus} --num-gpus={gpus} --disable-usage-stats --block"
srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" $node --head --port="$port" \\
    --node-ip-address="$address" --include-dashboard=false --temp-dir="/tmp/ray-$SLURM_JOB_ID" &
{workers}bash -c "$wait_ray"
exec {command} --cluster ray --address "$address:$port"
"""
_WORKERS = """\
srun --overlap --nodes={others} --ntasks={others} --exclude="$head" \\
    bash -c "$wait_ray && exec $node --address=$address:$port" &
"""


def script(
    cluster: NodeKeys, demands: Sequence[Demand], run_dir: Path, command: Sequence[str]
) -> str:
    """Return the batch script of a job for a run in `run_dir` whose processes need the resources
    `demands`; `command` lacks the cluster options.

    Raises:
        ConfigError: the nodes are too small for the run with any number of CPUs.
    """
    cpus = cpus_per_node(demands, nodes=cluster.nodes, gpus=cluster.gpus_per_node)
    options = [
        f"--job-name=arl-{run_dir.name}",
        f"--nodes={cluster.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={cpus + OWN_CPUS}",
        *([f"--gpus-per-node={cluster.gpus_per_node}"] if cluster.gpus_per_node else []),
        f"--output={run_dir / 'slurm.log'}",
        *cluster.sbatch,
    ]
    ray = shlex.quote(str(Path(sys.executable).parent / "ray"))
    others = cluster.nodes - 1
    return _SCRIPT.format(
        options="\n".join(f"#SBATCH {option}" for option in options),
        ray=ray,
        cpus=cpus,
        gpus=cluster.gpus_per_node,
        workers=_WORKERS.format(others=others, ray=ray) if others else "",
        command=shlex.join(command),
    )


def cpus_per_node(demands: Sequence[Demand], *, nodes: int, gpus: int) -> int:
    """Return the fewest CPUs per node with which `nodes` equal nodes of `gpus` GPUs hold these
    processes, placed by `check`.

    Raises:
        ConfigError: there are too few GPUs, regardless of the CPUs.
    """
    every = sum(demand.count * demand.cpus for demand in demands)
    for cpus in range(max((demand.cpus for demand in demands), default=0), every):
        try:
            check(demands, _alike(nodes, cpus, gpus))
        except ConfigError:
            continue
        return cpus
    check(demands, _alike(nodes, every, gpus))
    return every


def _alike(nodes: int, cpus: int, gpus: int) -> list[Node]:
    return [Node(f"node {index}", cpus, gpus) for index in range(nodes)]


def write_job(run_dir: Path, text: str, *, config: str) -> Path:
    """Write `slurm.sh` and its configuration `slurm.toml` to `run_dir`; return the script."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / CONFIG).write_text(config, encoding="utf-8")
    (run_dir / "slurm.sh").write_text(text, encoding="utf-8")
    return run_dir / "slurm.sh"


def submit(job: Path) -> str:
    """Submit a job; return the output of sbatch, or "" if there is no sbatch.

    Raises:
        ConfigError: sbatch refuses the job, or does not answer in time.
    """
    if shutil.which("sbatch") is None:
        return ""
    try:
        done = subprocess.run(
            ["sbatch", str(job)], capture_output=True, text=True, timeout=SUBMIT_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"sbatch {job} did not answer in {SUBMIT_TIMEOUT_S} s") from error
    if done.returncode:
        raise ConfigError(
            f"sbatch refuses {job}: {done.stderr.strip()}. cluster.sbatch takes more options"
        )
    return done.stdout.strip()
