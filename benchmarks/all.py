"""Every benchmark, one after the other, and one report: report.json and report.html.

Each runs as a process of its own; one that fails is a line of the report, and the others go on.
Results are kept as NAME.json in ARL_BENCH_OUT (default runs/bench), and not measured again, so the
command can be interrupted: staleness, faults and crash take hours. ARL_BENCH_ONLY=env,math measures
only these; ARL_BENCH_AGAIN=1 measures kept ones again. Peers have environments of their own: `make
bench-peers` and `make test-vllm` install them where they are found (or ARL_VLLM_PYTHON and similar
variables name an interpreter); a missing peer is skipped by name.

With ARL_BENCH_OUT=docs/data/bench, docs/measurements.md is made anew as well.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from agentgym_rl.core import install_command

from . import _html, _measurements
from ._common import hardware, say, versions
from ._formatting import goal_met
from ._kept import Job, measure, read, write
from ._toy import sized
from .real import lacking

_PUBLICATION = {"ARL_BENCH_PARTS": "publication"}
# The quick ones first.
JOBS = (
    Job("env", "env"),
    Job("math", "math"),
    Job("gateway", "gateway"),
    Job("clients", "clients"),
    Job("sandbox", "sandbox"),
    Job("code", "code"),
    Job("coding", "coding"),
    Job("engine", "engine", {"OMP_NUM_THREADS": "1"}),
    Job("real", "real", {"OMP_NUM_THREADS": "1"}),
    Job("weights", "weights", {"ARL_BENCH_PARTS": "embedded,vllm"}),
    Job("weights-sglang", "weights", {"ARL_BENCH_PARTS": "sglang", "ARL_BENCH_MODELS": "1M"}),
    Job("publication", "weights", _PUBLICATION | {"ARL_BENCH_MODELS": "135M"}),
    Job("publication-1.3B", "weights", _PUBLICATION | {"ARL_BENCH_MODELS": "1.3B"}),
    Job("trainer", "trainer"),
    Job("scale", "scale"),
    Job("gpu", "gpu"),
    Job("train", "train"),
    Job("exactness", "exactness"),
    Job("distill", "distill"),
    Job("curriculum", "curriculum"),
    Job("crash", "crash"),
    Job("faults", "faults"),
    Job("faults-ray", "faults", {"ARL_BENCH_FAULTS": "ray"}),
    Job("staleness", "staleness"),
    Job("selfplay", "selfplay"),
)


def run() -> dict[str, Any]:
    """Run the benchmarks that are not kept yet; return the report as one object."""
    folder = Path(os.environ.get("ARL_BENCH_OUT", sized("runs/bench", toy="runs/bench-toy")))
    jobs = _asked()
    for number, job in enumerate(jobs, 1):
        say(f"[{number}/{len(jobs)}] {job.command}")
        if (folder / f"{job.name}.json").exists() and not os.environ.get("ARL_BENCH_AGAIN"):
            say("  kept from before")
        elif why := _impossible(job):
            say(f"  not run: {why}")
        else:
            kept = measure(job)
            write(kept, folder)
            say(f"  {kept.error or goal_met(kept.result)} {kept.seconds:,.0f} s")
    found = read(folder, [job.name for job in JOBS])
    folder.mkdir(parents=True, exist_ok=True)
    report = {
        "name": "all",
        "hardware": hardware(),
        "versions": versions(),
        "rows": [asdict(kept) for kept in found],
        "not_run": {job.name: why for job in jobs if (why := _impossible(job))},
        "failed": [kept.name for kept in found if kept.error],
    }
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "report.html").write_text(_html.page(found))
    say(f"report: {folder / 'report.html'}")
    if folder.resolve() == _measurements.KEPT:
        _measurements.PAGE.write_text(_measurements.text(found))
        say(f"written: {_measurements.PAGE}")
    return report


def _asked() -> list[Job]:
    asked = [name for name in os.environ.get("ARL_BENCH_ONLY", "").split(",") if name]
    known = [job.name for job in JOBS]
    if unknown := sorted(set(asked) - set(known)):
        raise SystemExit(f"ARL_BENCH_ONLY: no {', '.join(unknown)}; there are {', '.join(known)}")
    return [job for job in JOBS if not asked or job.name in asked]


def _impossible(job: Job) -> str:
    """Return what this machine lacks for a benchmark; "": nothing."""
    if job.name in ("real", "publication"):
        return lacking()
    if job.name == "gpu":
        return "" if torch.cuda.is_available() else "needs a GPU"
    if job.name != "faults-ray":
        return ""
    lacks = [
        what
        for what, there in {
            "root": os.geteuid() == 0,
            f"Ray ({install_command('ray')})": importlib.util.find_spec("ray"),
            "iproute2 (apt-get install iproute2)": shutil.which("ip"),
        }.items()
        if not there
    ]
    return f"needs {', '.join(lacks)}" if lacks else ""
