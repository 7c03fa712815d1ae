"""The probes of this machine, one for each requirement of some part of the package."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from agentgym_rl.config import ENGINES
from agentgym_rl.core import ArlError, install_command
from agentgym_rl.engines import OwnKind
from agentgym_rl.gym import Probe, ProbeReport, listing, make_sandbox
from agentgym_rl.models import BUNDLED_MODELS, weights_size

PYTHON = (3, 11)
SHARED_MEMORY = Path("/dev/shm")
OPEN_FILES = 4096
"""The sockets and pipes of several hundred concurrent episodes, with sandbox and connections."""
FREE_BYTES = 2 * 10**9
"""The disk space for many runs of the bundled model with its checkpoints."""
_PUBLISHED = 4
"""The maximum number of versions in shared memory at once: see `weights.keep_versions`."""
_FLOAT32_OVER_BFLOAT16 = 2
_SANDBOX_TIMEOUT_S = 60.0
_TORCH_TIMEOUT_S = 120.0
_REPORT_TORCH = """
import json, torch
gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
found = {"version": torch.__version__, "threads": torch.get_num_threads()}
print(json.dumps(found | {"gpus": [[it.name, it.total_memory] for it in gpus]}))
"""


REQUIRED = ("python", "torch", "model", "disk")
"""The names of the probes that `arl train --env math` needs."""


async def examine(python: str = "") -> list[Probe]:
    """Run all probes; those in `REQUIRED` are required. `python`: the interpreter that has
    the engines of other projects, if it is not this one."""
    checks: dict[str, Callable[[], Probe | None]] = {
        "python": _python,
        "torch": _torch,
        "model": _model,
        "shared memory": _shared_memory,
        "disk": _disk,
        "open files": _open_files,
        "GPU": _gpu,
        **_engines(python),
        "Ray": _ray,
        "Slurm": _slurm,
    }
    found = [await asyncio.to_thread(_guarded, name, probe) for name, probe in checks.items()]
    sandboxes = [await _sandbox(row.id) for row in listing("sandbox")]
    return [probe for probe in found if probe] + sandboxes


def _engines(python: str) -> dict[str, Callable[[], Probe | None]]:
    """Return the probes of the kinds of engines, by their titles."""
    kinds = (kind for kind in ENGINES.members.values() if isinstance(kind, OwnKind))
    return {kind.title: partial(kind.probe, python) for kind in kinds}


def _guarded(name: str, probe: Callable[[], Probe | None]) -> Probe | None:
    """Run a probe, which returns None if it needs nothing; an error in it is a failed probe, so
    that the other probes still run."""
    try:
        return probe()
    except Exception as error:
        return Probe(name, False, f"{type(error).__name__}: {error}", required=name in REQUIRED)


def _python() -> Probe:
    version = platform.python_version()
    wanted = ".".join(map(str, PYTHON))
    detail = f"{version} ({sys.executable}), {os.cpu_count()} processors, {_memory()}"
    return Probe("python", sys.version_info >= PYTHON, detail, f"install Python {wanted} or later")


def _memory() -> str:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{total / 1e9:.0f} GB of memory"


@cache
def _torch_report() -> dict[str, Any]:
    """Return the properties of torch and its GPUs, read in a separate process, which a broken
    driver may end.

    Raises:
        OSError, SubprocessError, ValueError: the process reports nothing.
    """
    answer = subprocess.run(
        [sys.executable, "-c", _REPORT_TORCH],
        capture_output=True,
        text=True,
        timeout=_TORCH_TIMEOUT_S,
        check=False,
    )
    if answer.returncode:
        raise ValueError(answer.stderr.strip()[-300:] or f"exit status {answer.returncode}")
    return json.loads(answer.stdout)


def _torch() -> Probe:
    fix = 'pip install "torch>=2.11,<2.16"'
    try:
        found = _torch_report()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Probe("torch", False, str(error), fix)
    return Probe("torch", True, f"{found['version']}, {found['threads']} threads")


def _model() -> Probe:
    missing = [name for name, path in BUNDLED_MODELS.items() if not weights_size(path)]
    fix = "install the package again: its wheel has the models"
    return Probe("model", not missing, f"bundled: {', '.join(BUNDLED_MODELS)}", fix)


def _shared_memory() -> Probe:
    largest = max(map(weights_size, BUNDLED_MODELS.values()))
    needed = largest * _FLOAT32_OVER_BFLOAT16 * _PUBLISHED
    fix = (
        f"runs go through {tempfile.gettempdir()} meanwhile, which is slower. In a container: "
        "docker run --shm-size=1g; or set weights.folder to a folder with room"
    )
    if not SHARED_MEMORY.is_dir():
        return Probe("shared memory", False, f"no {SHARED_MEMORY}", fix, required=False)
    free = shutil.disk_usage(SHARED_MEMORY).free
    detail = f"{_size(free)} free in {SHARED_MEMORY}; the bundled model takes {_size(needed)}"
    return Probe("shared memory", free >= needed, detail, fix, required=False)


def _disk() -> Probe:
    free = shutil.disk_usage(Path.cwd()).free
    fix = "make room, or keep runs elsewhere: --run FOLDER. `arl runs` shows what each takes"
    return Probe("disk", free >= FREE_BYTES, f"{_size(free)} free here ({Path.cwd()})", fix)


def _open_files() -> Probe:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    detail = f"{soft:,} at once (the hard limit is {hard:,})"
    fix = f"ulimit -n {OPEN_FILES}; with fewer, hundreds of episodes at once fail"
    return Probe("open files", soft >= OPEN_FILES, detail, fix, required=False)


def _gpu() -> Probe:
    names = [f"{name} ({size / 1e9:.0f} GB)" for name, size in _torch_report()["gpus"]]
    if not names:
        return Probe(
            *("GPU", False, "torch sees none: engine and trainer run on the CPU"),
            fix="with an NVIDIA GPU: its driver (nvidia-smi has to work), and torch built for CUDA",
            required=False,
        )
    return Probe("GPU", True, ", ".join(names), required=False)


def _ray() -> Probe:
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return Probe(
            *("Ray", False, "not installed: one machine only"),
            fix=install_command("ray"),
            required=False,
        )
    return Probe("Ray", True, version, required=False)


def _slurm() -> Probe:
    found = shutil.which("sbatch")
    if found is None:
        fix = "on a cluster that has it, run on a login node"
        return Probe("Slurm", False, "no sbatch", fix, required=False)
    return Probe("Slurm", True, found, required=False)


async def _sandbox(id: str) -> Probe:
    """Summarize a sandbox backend in one probe: `arl doctor sandbox` shows all of its probes."""
    name = f"sandbox {id}"
    more = f"arl doctor sandbox --sandbox={id}"
    try:
        async with asyncio.timeout(_SANDBOX_TIMEOUT_S):
            report = await make_sandbox(id).probe()
    except (ArlError, OSError, TimeoutError) as error:
        return Probe(name, False, str(error) or repr(error), more, required=False)
    if report.ok:
        return Probe(name, True, _what_fails(report.probes) or "works", required=False)
    failed = next(probe for probe in report.probes if probe.required and not probe.ok)
    return Probe(name, False, f"{failed.name}: {failed.detail}", more, required=False)


def _what_fails(probes: Sequence[Probe]) -> str:
    without = [probe.name for probe in probes if not probe.ok]
    return f"works, without {', '.join(without)}" if without else ""


def _size(size_bytes: int) -> str:
    unit, name = (10**9, "GB") if size_bytes >= 10**9 else (10**6, "MB")
    return f"{size_bytes / unit:,.0f} {name}"


_WIDTH = 80


def probe_text(report: ProbeReport) -> str:
    """Return the report of a sandbox as text, in lines of at most 80 characters."""
    lines = [*probe_lines(report.probes), ""]
    if not report.ok:
        return "\n".join([*lines, f"sandbox {report.backend}: does not work on this machine"])
    lines.append(f"sandbox {report.backend}: works; programs there get")
    for field in dataclasses.fields(report.capabilities):
        value = getattr(report.capabilities, field.name)
        names = isinstance(value, frozenset)
        text = (", ".join(sorted(value)) or "none") if names else ("yes" if value else "no")
        lines.append(f"  {field.name:<18} {text}")
    return "\n".join(lines)


def machine_text(probes: Sequence[Probe]) -> str:
    """Return the report of the machine as text, likewise."""
    missing = [probe.name for probe in probes if probe.required and not probe.ok]
    works = "`arl train --env math --agent react` works here"
    verdict = f"missing for any run: {', '.join(missing)}" if missing else works
    return "\n".join([*probe_lines(probes), "", verdict])


def probe_lines(probes: Sequence[Probe]) -> Iterator[str]:
    """Yield one or more lines for each probe: ok, FAIL (it is required) or no, and the remedy."""
    width = max((len(probe.name) for probe in probes), default=0)
    for probe in probes:
        yield from _lines(probe, width)


def _lines(probe: Probe, width: int) -> list[str]:
    mark = "ok  " if probe.ok else ("FAIL" if probe.required else "no  ")
    indent = " " * (width + 7)
    text = probe.detail if probe.ok or not probe.fix else f"{probe.detail}\n{probe.fix}"
    head = f"{mark} {probe.name:<{width}}  "
    wrapped = [
        line
        for part in text.splitlines()
        for line in textwrap.wrap(
            part, _WIDTH - 7 - width, break_on_hyphens=False, break_long_words=False
        )
    ] or [""]
    return [(head if i == 0 else indent) + line for i, line in enumerate(wrapped)]
