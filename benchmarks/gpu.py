"""A first measurement of a GPU, in eight minutes: agreement, speed, and the jobs.

    arl bench gpu [--model FOLDER] [--out FOLDER]     # one H100, H200 or A100
    arl bench gpu --dry-run                           # every part at toy size, on a CPU

Parts: parity of engine and trainer in float32 and bfloat16; varlen attention against rows; tokens a
second of the engine, and teraFLOP/s and MFU of a step of the trainer with the shares of attention,
head and optimizer, at 0.1, 0.6 and 1.7 billion random parameters; the memory of loading; the share
of the time that two ranks wait for each other; publication to an engine in another process, by
shared memory and, with vLLM, ipc; the main job; some steps of a real model (--model, such as
SmolLM2). Each part is a process of its own with a budget of time; one that
fails or overruns is a line of the report, and the others go on. The report is FOLDER/gpu.json and
FOLDER/gpu.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from arl_meters.devices import peak_tflops

from agentgym_rl.core import ConfigError

from ._common import end, hardware, say, versions
from ._toy import TOY

BUDGETS_S: Mapping[str, float] = {
    "parity": 55,
    "attention": 45,
    "engine": 85,
    "trainer": 85,
    "loading": 30,
    "idle ranks": 35,
    "publication": 45,
    "main job": 50,
    "real model": 50,
}
"""The longest time of each part in seconds, in the order they run: eight minutes in all."""
OUT = Path("runs/bench-gpu")
_ROOT = Path(__file__).parents[1]
_COMMAND = (sys.executable, "-m", "benchmarks._gpu_parts")
_TOY_FACTOR = 4.0
"""The factor of the budgets of a dry run, whose machine may be slow and busy."""


def run(
    *, dry_run: bool = TOY, model: Path | None = None, out: Path | None = None
) -> dict[str, Any]:
    """Run every part, and write the report; `met` is whether no part failed.

    Raises:
        ConfigError: there is no GPU that torch can use, or no model in the folder.
    """
    if not dry_run and not torch.cuda.is_available():
        raise ConfigError(
            f"arl bench gpu measures a GPU, and torch {torch.__version__} finds none on this "
            "machine (torch.cuda.is_available() is False). Run it where there is one, or with "
            "--dry-run, which runs every part at toy size on the CPU"
        )
    if model is not None and not (model / "config.json").exists():
        raise ConfigError(f"--model {model}: no config.json is in it, expected a model's folder")
    folder = out or OUT
    folder.mkdir(parents=True, exist_ok=True)
    flags = ["--toy"] if dry_run else []
    flags += [f"--model={model.resolve()}"] if model else []
    parts: dict[str, dict[str, Any]] = {}
    report: dict[str, Any] = {
        "name": "gpu",
        "dry_run": dry_run,
        "hardware": hardware(_device(dry_run)),
        "versions": versions(),
        "python": sys.version.split()[0],
        "parts": parts,
        "ratios": {},
        "goal": "every part that can run here does, within its time",
    }
    with tempfile.TemporaryDirectory(prefix="arl-bench-gpu-") as scratch:
        for name, budget_s in BUDGETS_S.items():
            say(f"{name}: at most {budget_s:g} s")
            limit_s = budget_s * (_TOY_FACTOR if dry_run else 1.0)
            parts[name] = measured(_COMMAND, name, Path(scratch), flags, limit_s=limit_s)
            say(f"  {parts[name].get('error') or 'done'} ({parts[name]['seconds']} s)")
            _write(report, folder)  # after each part, so that no result is lost
    say(f"report: {folder / 'gpu.json'} and {folder / 'gpu.md'}")
    return report


def _write(report: dict[str, Any], folder: Path) -> None:
    """Write the report of the parts so far, as JSON and as a page."""
    parts: Mapping[str, Mapping[str, Any]] = report["parts"]
    report |= {
        "rows": [{"part": it, **row} for it, part in parts.items() for row in part.get("rows", ())],
        "skipped": [what for part in parts.values() for what in part.get("skipped", ())],
        "met": not any("error" in part for part in parts.values()),
    }
    (folder / "gpu.json").write_text(json.dumps(report, indent=2) + "\n")
    (folder / "gpu.md").write_text(markdown(report))


def measured(
    command: Sequence[str], part: str, scratch: Path, flags: Sequence[str], *, limit_s: float
) -> dict[str, Any]:
    """Run one part as a process group that ends after `limit_s`; return its rows and skipped parts,
    or its `error`, and its seconds."""
    out, log = scratch / "part.json", scratch / "part.log"
    out.unlink(missing_ok=True)
    start = time.monotonic()
    with log.open("wb") as said:
        process = subprocess.Popen(
            [*command, part, str(out), str(scratch), *flags],
            stdout=said,
            stderr=said,
            cwd=_ROOT,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "ARL_DIE_WITH_PARENT": "1"},
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
            error = f"ended with code {code}: {_tail(log)}" if code or not out.exists() else ""
        except subprocess.TimeoutExpired:
            error = f"not finished after {limit_s:g} s: {_tail(log)}"
        finally:
            end(process)
    found: dict[str, Any] = {"error": error} if error else json.loads(out.read_text())
    return found | {"seconds": round(time.monotonic() - start, 1)}


def markdown(report: Mapping[str, Any]) -> str:
    """Return the report as a page: one table a part."""
    kind = "Dry run: toy sizes on a CPU, no figure is about a GPU.\n\n"
    known = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    lines = [f"# {report['hardware']}\n", f"Python {report['python']}, {known}.\n"]
    if report["dry_run"]:
        lines.append(kind)
    for name, part in report["parts"].items():
        lines.append(f"## {name} ({part['seconds']} s)\n")
        if "error" in part:
            lines.append(f"**Failed.** {part['error']}\n")
        if rows := part.get("rows"):
            names = list(dict.fromkeys(key for row in rows for key in row))
            lines += ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
            lines += [f"| {' | '.join(_cell(row.get(key)) for key in names)} |" for row in rows]
            lines.append("")
        lines += [f"Not measured: {what}\n" for what in part.get("skipped", ())]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _device(dry_run: bool) -> str:
    """Return a description of the device, with its peak, or "unknown"."""
    if dry_run:
        return "dry run on the CPU"
    device = torch.device("cuda")
    peak = peak_tflops(device, None)
    known = f"{peak:g} TFLOP/s" if peak else "unknown"
    gigabytes = torch.cuda.get_device_properties(device).total_memory / 1e9
    return f"{torch.cuda.get_device_name(device)}, {gigabytes:.0f} GB, peak in bfloat16 {known}"


def _tail(log: Path) -> str:
    """Return the last lines of a part's output, as one."""
    lines = log.read_text(errors="replace").strip().splitlines()[-8:]
    return " / ".join(line.strip() for line in lines)[-1000:]
