"""Results of benchmarks as files: measured once, each by a process of its own, read by reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Job:
    """A benchmark, and what it is told by its environment."""

    name: str
    """Of the result's file."""
    benchmark: str
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """As one types it."""
        told = "".join(f"{key}={value} " for key, value in self.env.items())
        return f"{told}arl bench {self.benchmark} --json"


@dataclass(frozen=True)
class Kept:
    """What came of a job."""

    name: str
    command: str
    date: str
    """Of its end, YYYY-MM-DD."""
    seconds: float
    load: tuple[float, float]
    """Load average of the machine as it began and as it ended."""
    result: Mapping[str, Any]
    """What the benchmark printed; empty if it failed."""
    error: str = ""
    """Why there is no result."""


def measure(job: Job) -> Kept:
    """Run a job to its end; its progress goes to stderr. What goes wrong is in `error`."""
    began, load = time.monotonic(), os.getloadavg()[0]
    argv = [sys.executable, "-m", "agentgym_rl", "bench", job.benchmark, "--json"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": path} | job.env
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT)
    result, error = _result(done)
    return Kept(
        name=job.name,
        command=job.command,
        date=time.strftime("%Y-%m-%d"),
        seconds=round(time.monotonic() - began, 1),
        load=(round(load, 1), round(os.getloadavg()[0], 1)),
        result=result,
        error=error,
    )


def _result(done: subprocess.CompletedProcess[str]) -> tuple[Mapping[str, Any], str]:
    try:
        result = json.loads(done.stdout)
    except json.JSONDecodeError:
        return {}, f"exit code {done.returncode}, and no JSON: {done.stdout[-500:]!r}"
    if "error" in result:
        return {}, str(result["error"].get("message", result["error"]))
    return result, ""


def write(kept: Kept, folder: Path) -> None:
    """Keep a result in `folder`, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(kept), indent=1, ensure_ascii=False) + "\n"
    write_whole(folder / f"{kept.name}.json", text)


def rows_file() -> Path | None:
    """ARL_BENCH_ROWS: where a benchmark keeps the rows of what it has finished."""
    name = os.environ.get("ARL_BENCH_ROWS")
    return Path(name) if name else None


def plot_file() -> Path | None:
    """ARL_BENCH_PLOT: where a benchmark draws its picture."""
    name = os.environ.get("ARL_BENCH_PLOT")
    return Path(name) if name else None


def read_rows(file: Path | None) -> list[dict[str, Any]]:
    """The rows kept in a file, one object a line; none where it is not there."""
    lines = file.read_text().splitlines() if file and file.exists() else []
    return [json.loads(line) for line in lines]


def keep_row(file: Path | None, row: Mapping[str, Any]) -> None:
    """Add a row to the file of what has finished, if there is one."""
    if file:
        with file.open("a") as lines:
            lines.write(json.dumps(row) + "\n")


def write_whole(file: Path, text: str) -> None:
    """All of it; or, if this process ends meanwhile, the file stays as it was."""
    part = file.with_name(f"{file.name}.part")
    part.write_text(text)
    part.replace(file)


def read(folder: Path, names: Sequence[str]) -> list[Kept]:
    """Those of `names` that are kept, in their order."""
    files = [folder / f"{name}.json" for name in names]
    return [_read(file) for file in files if file.exists()]


def _read(file: Path) -> Kept:
    fields = json.loads(file.read_text())
    return Kept(**fields | {"load": tuple(fields["load"])})
