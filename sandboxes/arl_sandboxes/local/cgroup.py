"""A bound on the memory and processes of a complete slot, on machines that permit one."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

OVERHEAD_MB = 48
"""The memory for the slot's own interpreter, and for a child's copies before its program begins."""
STALE_S = 60.0
"""The age of an empty group before its removal if its maker's pid is of another container, where
this process cannot see whether the maker lives."""
SPARE_PROCESSES = 4
"""The additional processes for the slot itself, and for the child that waits."""


@dataclass(frozen=True)
class Hierarchy:
    """The folders for new groups: one in version 2, one per controller in version 1."""

    version: int
    folders: dict[str, Path]
    """A map from controller ("memory", "pids") to folder; in version 2 the folders are the same."""

    def make(self, name: str) -> Cgroup:
        """Make a group for one slot.

        Raises:
            OSError: the kernel refused.
        """
        folders = {controller: folder / name for controller, folder in self.folders.items()}
        made: list[Path] = []
        try:
            for folder in set(folders.values()):
                folder.mkdir(exist_ok=True)
                made.append(folder)
            return Cgroup(self.version, folders)
        except OSError:
            for folder in made:
                folder.rmdir()
            raise

    def sweep(self) -> None:
        """Remove the empty groups of processes that were killed before they could remove them."""
        here = _pid_namespace()
        for folder in set(self.folders.values()):
            for path in folder.glob("arl-[0-9]*-*"):
                if os.path.exists(f"/proc/{path.name.split('-')[1]}"):
                    continue
                with contextlib.suppress(OSError):  # not empty, or gone
                    known = path.name.endswith(f".{here}")
                    if known or time.time() - path.stat().st_mtime > STALE_S:
                        path.rmdir()


class Cgroup:
    """The control group of one slot."""

    def __init__(self, version: int, folders: dict[str, Path]) -> None:
        self._version = version
        self._folders = folders
        self._limits = (0, 0)
        self._oom_kills = 0
        name = "memory.events" if version == 2 else "memory.oom_control"
        self._events = os.open(folders["memory"] / name, os.O_RDONLY | os.O_CLOEXEC)

    def add(self, pid: int) -> None:
        """Add a process, and all its future children. Costs milliseconds: once per slot."""
        for folder in set(self._folders.values()):
            (folder / "cgroup.procs").write_text(str(pid))

    def limited(self, *, memory_mb: int, processes: int) -> bool:
        """Return True if the group has these limits already."""
        return self._limits == (memory_mb, processes)

    def limit(self, *, memory_mb: int, processes: int) -> None:
        """Set both limits, for all processes of the slot together.

        Raises:
            OSError: the kernel refused.
        """
        self._limits = (0, 0)
        size = str((memory_mb + OVERHEAD_MB) << 20)
        memory = self._folders["memory"]
        if self._version == 2:
            (memory / "memory.max").write_text(size)
            with contextlib.suppress(OSError):  # no swap accounting
                (memory / "memory.swap.max").write_text("0")
        else:
            names = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
            for name in (*names, names[0]):  # lowering and raising the limits need opposite orders
                with contextlib.suppress(OSError):
                    (memory / name).write_text(size)
            if int((memory / names[0]).read_text()) > int(size):
                raise OSError(f"{memory}/{names[0]} does not take {size}")
        if "pids" in self._folders:
            (self._folders["pids"] / "pids.max").write_text(str(processes + SPARE_PROCESSES))
        self._limits = (memory_mb, processes)

    def oom_kills(self) -> int:
        """Return the number of out-of-memory kills so far; after `remove`, the last count."""
        if self._events >= 0:
            with contextlib.suppress(OSError):
                _, found, rest = os.pread(self._events, 4096, 0).partition(b"oom_kill ")
                if found:
                    self._oom_kills = int(rest.split(None, 1)[0])
        return self._oom_kills

    def remove(self) -> bool:
        """Remove the group; return True if nothing of it is left. Idempotent."""
        if self._events >= 0:
            os.close(self._events)
            self._events = -1
        for folder in set(self._folders.values()):
            with contextlib.suppress(FileNotFoundError):
                try:
                    folder.rmdir()
                except OSError:
                    return False
        return True


def group_name(name: str) -> str:
    """Return the name of a group by that of a slot, "arl-PID-...", and the namespace of its pid."""
    return f"{name}.{_pid_namespace()}"


def find(root: Path = Path("/")) -> tuple[Hierarchy | None, str]:
    """Find a place to make groups, and describe it: version 2 if it has memory, else version 1."""
    mounts = _mounts(root)
    own = _own(root)
    version_2 = [(path, "") for kind, path, _ in mounts if kind == "cgroup2"]
    for mount, _ in version_2:
        folder = _own_folder(root, mount, own.get("", "/"))
        if "memory" not in _words(folder / "cgroup.subtree_control"):
            with contextlib.suppress(OSError):
                (folder / "cgroup.subtree_control").write_text("+memory +pids")
        if "memory" in _words(folder / "cgroup.subtree_control") and os.access(folder, os.W_OK):
            return Hierarchy(2, dict.fromkeys(("memory", "pids"), folder)), f"version 2, {folder}"
    folders = {}
    for kind, mount, options in mounts:
        for controller in ("memory", "pids"):
            if kind == "cgroup" and controller in options:
                folder = _own_folder(root, mount, own.get(controller, "/"))
                if os.access(folder, os.W_OK):
                    folders[controller] = folder
    if "memory" in folders:
        return Hierarchy(1, folders), f"version 1, {folders['memory']}"
    return None, "no writable one with the memory controller"


def wanted(mode: str, name: str) -> tuple[Hierarchy | None, str]:
    """Find a place that works, unless `mode` is "off", and describe it; `name` is for a trial."""
    if mode == "off":
        return None, "not wanted (cgroup 'off')"
    groups, words = find()
    if groups is not None and (refused := usable(groups, name)):
        return None, f"{words}, refuses: {refused}"
    if groups is not None:
        groups.sweep()
    return groups, words


def usable(hierarchy: Hierarchy, name: str) -> str:
    """Try to make and limit a group of that name; return the kernel's objection, or ""."""
    try:
        group = hierarchy.make(name)
        try:
            group.limit(memory_mb=64, processes=8)
        finally:
            group.remove()
    except OSError as error:
        return f"{error.filename or ''}: {error.strerror or error}"
    return ""


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _mounts(root: Path) -> list[tuple[str, str, list[str]]]:
    """Return (type, mount point, options) of every mount."""
    found = []
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/mounts").read_text().splitlines():
            _, path, kind, options = line.split()[:4]
            found.append((kind, path, options.split(",")))
    return found


def _own(root: Path) -> dict[str, str]:
    """Return controller -> path of this process's group; version 2 has the controller ""."""
    found = {}
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            found |= dict.fromkeys(controllers.split(","), path)
    return found


def _own_folder(root: Path, mount: str, path: str) -> Path:
    """Find the group's folder. A container may report the machine's path, absent from its mount."""
    top = root / mount.lstrip("/")
    own = top / path.lstrip("/")
    return own if own.is_dir() else top
