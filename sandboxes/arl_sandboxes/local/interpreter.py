"""The choice of the Python that runs the programs, and of the folders it needs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import arl_isolation
from agentgym_rl import ConfigError, SandboxUnavailable
from arl_sandboxes.arguments import PYTHON_OPTIONS

from .hidden_paths import below, hidden_paths

NAMESPACE_SERVER = Path(__file__).parent / "inside" / "namespace_server.py"
LANDLOCK_SERVER = NAMESPACE_SERVER.with_name("landlock_server.py")
"""The fork server for machines without namespaces (isolation "landlock")."""
_START = """
import os, sys
folder, name = os.path.split(sys.argv.pop(1))
sys.path[:] = [folder, *sys.path, sys.argv.pop(1)]
module = __import__(name[:-3])
sys.path[:] = sys.path[1:-1]
module.main()
"""
"""The start of a file of `inside/`, which imports others beside it, and then `arl_isolation`."""
PREIMPORT = (  # noqa: SIM905 - words, to be read
    "json re math cmath random collections collections.abc itertools functools heapq bisect string "
    "typing dataclasses datetime fractions decimal statistics traceback io operator copy time sys "
    "os.path array enum textwrap linecache ast atexit"
).split()
PACKAGES = "/packages"
"""The folder in a sandbox that contains `packages`."""


@dataclass(frozen=True)
class SlotConfig:
    """The settings that all slots of a backend are started with."""

    python: str
    read_only: Sequence[tuple[str, str]]
    """The pairs (folder of the machine, path at which programs see it)."""
    hidden: Sequence[str]
    """The real paths, in those folders, that programs do not see."""
    path: Sequence[str]
    """The folders added to `sys.path`."""
    preimport: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """The environment of the fork server while it starts; no program receives it."""
    isolation: str = "namespaces"

    def ahead(self) -> list[str]:
        """Return the modules to load before the namespaces: those of the standard library alone."""
        known = sys.stdlib_module_names
        return [name for name in self.preimport if name.split(".")[0] in known]

    def command(self, script: Path | None = None) -> list[str]:
        """Return the command that runs a file of `inside/`: by default, a slot's first process."""
        script = script or (LANDLOCK_SERVER if self.isolation == "landlock" else NAMESPACE_SERVER)
        place = Path(arl_isolation.__file__).parents[1]
        start = [self.python, *PYTHON_OPTIONS, "-S", "-B", "-c", _START]
        return [*start, str(script), str(place)]


def slot_config(
    python: str,
    packages: Sequence[str],
    preimport: Sequence[str] | None,
    isolation: str = "namespaces",
    mounts: Mapping[str, str] = MappingProxyType({}),
) -> SlotConfig:
    """Return the settings that slots are started with.

    python: an interpreter; "": the base interpreter of the one that runs this code. A virtual
        environment itself is never shown to programs, since packages installed there may hold
        answers; packages installed beside the interpreter are hidden, too (hidden_paths.py).
    packages: import names that programs may use despite that (("numpy",)).
    mounts: folders of this machine by the path at which programs see them, complete.

    Raises:
        ConfigError: a package is not installed, or a mount covers the interpreter.
        SandboxUnavailable: the interpreter does not run, or lies where programs cannot read it.
    """
    python = python or os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    prefix, library = _places(python)
    read_only = [("/usr", "/usr")]
    if not below(prefix, "/usr"):
        read_only.append((prefix, prefix))
    unseen = hidden_paths([source for source, _ in read_only], (python, prefix, library))
    read_only += [(path, path) for path in ("/etc/alternatives",) if os.path.isdir(path)]
    for name in packages:
        read_only += [(folder, f"{PACKAGES}/{Path(folder).name}") for folder in _folders(name)]
    for target, source in mounts.items():
        if below(prefix, target) or below(target, prefix):
            raise ConfigError(
                f"mounts: {target} overlaps {prefix}, the programs' Python: choose another"
            )
        read_only.append((source, target))
    # One BLAS thread: slots share the processors, and RLIMIT_NPROC counts threads.
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    wanted = [*PREIMPORT, *packages] if preimport is None else list(preimport)
    path = [PACKAGES] if packages else []
    return SlotConfig(python, read_only, unseen, path, wanted, threads, isolation)


def _places(python: str) -> tuple[str, str]:
    """Return the interpreter's prefix and its standard library."""
    facts = "sys.version_info >= (3, 10), sys.base_prefix, os.__file__"
    script = f"import os, sys; print({facts}, sep=chr(10))"
    try:
        done = subprocess.run(
            [python, "-I", "-S", "-c", script],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
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
