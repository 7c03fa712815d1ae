"""The choice of the Python that runs the programs, and of the folders it needs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from agentgym_rl import ConfigError, SandboxUnavailable

from .hidden import below, hidden
from .slot import SlotConfig

PREIMPORT = (  # noqa: SIM905 - words, to be read
    "json re math cmath random collections collections.abc itertools functools heapq bisect string "
    "typing dataclasses datetime fractions decimal statistics traceback io operator copy time sys "
    "os.path array enum textwrap linecache ast atexit"
).split()
PACKAGES = "/packages"
"""The folder in a sandbox that contains `packages`."""


def slot_config(
    python: str,
    packages: Sequence[str],
    preimport: Sequence[str] | None,
    isolation: str = "namespaces",
) -> SlotConfig:
    """Return the settings that slots are started with.

    python: an interpreter; "": the base interpreter of the one that runs this code. A virtual
        environment itself is never shown to programs, since packages installed there may hold
        answers; packages installed beside the interpreter are hidden, too (hidden.py).
    packages: import names that programs may use despite that (("numpy",)).

    Raises:
        ConfigError: a package is not installed.
        SandboxUnavailable: the interpreter does not run, or lies where programs cannot read it.
    """
    python = python or os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    prefix, library = _places(python)
    read_only = [("/usr", "/usr")]
    if not below(prefix, "/usr"):
        read_only.append((prefix, prefix))
    unseen = hidden([source for source, _ in read_only], (python, prefix, library))
    read_only += [(path, path) for path in ("/etc/alternatives",) if os.path.isdir(path)]
    for name in packages:
        read_only += [(folder, f"{PACKAGES}/{Path(folder).name}") for folder in _folders(name)]
    # One BLAS thread: slots share the processors, and RLIMIT_NPROC counts threads.
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    wanted = [*PREIMPORT, *packages] if preimport is None else list(preimport)
    path = [PACKAGES] if packages else []
    return SlotConfig(python, read_only, unseen, path, wanted, threads, isolation)


def _places(python: str) -> tuple[str, str]:
    """Return the interpreter's prefix and its standard library."""
    told = "sys.version_info >= (3, 10), sys.base_prefix, os.__file__"
    ask = f"import os, sys; print({told}, sep=chr(10))"
    try:
        done = subprocess.run(
            [python, "-I", "-S", "-c", ask], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(f"sandbox python {python!r} does not run: {error}") from error
    new_enough, prefix, module = done.stdout.splitlines()
    if new_enough != "True":
        raise SandboxUnavailable(f"sandbox python {python!r} is older than 3.10")
    return prefix, os.path.dirname(module)


def _folders(name: str) -> list[str]:
    """Return a package's own folder, and the folder of libraries that a wheel puts beside it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"sandbox package {name!r} is not installed here, or is no package")
    folder = Path(next(iter(spec.submodule_search_locations)))
    beside = folder.with_name(f"{name}.libs")
    return [str(path) for path in (folder, beside) if path.is_dir()]
