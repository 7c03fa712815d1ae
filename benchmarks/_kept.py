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
    """A benchmark, and its environment variables."""

    name: str
    """The name of the result's file."""
    benchmark: str
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """Return the command line of the job, as a user types it."""
        variables = "".join(f"{key}={value} " for key, value in self.env.items())
        return f"{variables}arl bench {self.benchmark} --json"


@dataclass(frozen=True)
class Kept:
    """The result of a job."""

    name: str
    command: str
    date: str
    """The date of its end, YYYY-MM-DD."""
    seconds: float
    load: tuple[float, float]
    """The load average of the machine at its start and end."""
    result: Mapping[str, Any]
    """The object that the benchmark printed; empty if it failed."""
    error: str = ""
    """The reason why there is no result."""


def measure(job: Job) -> Kept:
    """Run a job to its end; its progress goes to stderr, and a failure to `error`."""
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
    """Write a result into `folder`, atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(kept), indent=1, ensure_ascii=False) + "\n"
    write_atomically(folder / f"{kept.name}.json", text)


def rows_file() -> Path | None:
    """Return the file in which a benchmark keeps finished rows (ARL_BENCH_ROWS)."""
    name = os.environ.get("ARL_BENCH_ROWS")
    return Path(name) if name else None


def plot_file() -> Path | None:
    """Return the file to which a benchmark draws its plot (ARL_BENCH_PLOT)."""
    name = os.environ.get("ARL_BENCH_PLOT")
    return Path(name) if name else None


def read_rows(file: Path | None) -> list[dict[str, Any]]:
    """Return the rows kept in a file, one object a line; empty if there is no file."""
    lines = file.read_text().splitlines() if file and file.exists() else []
    return [json.loads(line) for line in lines]


def keep_row(file: Path | None, row: Mapping[str, Any]) -> None:
    """Append a row to the file of finished rows, if there is one."""
    if file:
        with file.open("a") as lines:
            lines.write(json.dumps(row) + "\n")


def write_atomically(file: Path, text: str) -> None:
    """Write a file atomically: if this process ends meanwhile, the file does not change."""
    part = file.with_name(f"{file.name}.part")
    part.write_text(text)
    part.replace(file)


def read(folder: Path, names: Sequence[str]) -> list[Kept]:
    """Return the kept results of `names`, in their order."""
    files = [folder / f"{name}.json" for name in names]
    return [_read(file) for file in files if file.exists()]


def _read(file: Path) -> Kept:
    fields = json.loads(file.read_text())
    return Kept(**fields | {"load": tuple(fields["load"])})
