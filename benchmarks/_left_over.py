"""The count of the things that sandboxes leave on the machine, without those of other programs.

Other users may use the machine, and its docker daemon, at the same time: processes count if they
descend from this one, control groups and containers if their names or labels have its pid or that
of a child, and files in folders that only this process and its children use.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arl_sandboxes.docker import owner, sdk
from arl_sandboxes.docker.container import Daemon
from arl_sandboxes.local import cgroup

SETTLE_S = 60.0
"""The longest wait, in seconds, after the backend was closed: for the ends of killed processes, and
for changes by other users of the daemon."""
_SUBREAPER = 36


@dataclass(frozen=True)
class Census:
    """The things that are there at one moment, by kind and name."""

    names: frozenset[str]
    descriptors: int
    """The number of open files of this process."""

    def left_since(self, before: Census) -> list[str]:
        """Return the things that were not there before."""
        more = self.descriptors - before.descriptors
        return sorted(self.names - before.names) + [f"descriptor {n + 1}" for n in range(more)]


@dataclass
class Footprint:
    """The folders of files of this process and its children, and the pids of both."""

    top: Path
    pids: set[int] = field(default_factory=lambda: {os.getpid()})

    def census(self) -> Census:
        """Look everywhere; zombies that became this process's children are reaped first."""
        gc.collect()
        names = {f"mount {line.split()[4]}" for line in _mounts() if str(self.top) in line}
        names |= {f"process {pid} {_command(pid)}" for pid in _descendants()}
        names |= {f"group {path}" for path in self._groups()}
        names |= {f"file {path.relative_to(self.top)}" for path in (self.top / "tmp").iterdir()}
        names |= {f"image {path.name}" for path in _unfinished(self.top)}
        names |= self._of_daemon()
        return Census(frozenset(names), len(os.listdir("/proc/self/fd")))

    def left_since(self, before: Census) -> list[str]:
        """Return the things in excess of `before`, after waiting at most `SETTLE_S`."""
        until = time.monotonic() + SETTLE_S
        while (found := self.census().left_since(before)) and time.monotonic() < until:
            time.sleep(0.5)
        return found

    def _groups(self) -> Iterator[Path]:
        groups, _ = cgroup.find()
        folders = set(groups.folders.values()) if groups is not None else set[Path]()
        for folder in folders:
            for pid in self.pids:
                yield from folder.glob(f"arl-{pid}-*")

    def _of_daemon(self) -> set[str]:
        """Return our containers, all volumes and networks, and the mounts of root file systems but
        for those of other people's containers."""
        try:
            daemon = Daemon("")
        except (*sdk.CONNECT_ERRORS, OSError):
            return set()
        try:
            api = daemon.api
            ours, theirs = set[str](), set[str]()
            for each in api.containers(all=True):
                labels: dict[str, Any] = each.get("Labels") or {}
                pid = labels.get(f"{owner.LABEL}.pid", "").partition(":")[0]
                (ours if pid.isdigit() and int(pid) in self.pids else theirs).add(each["Id"])
            names = {f"container {id}" for id in ours}
            names |= {f"volume {each['Name']}" for each in api.volumes()["Volumes"] or ()}
            names |= {f"network {each['Name']}" for each in api.networks()}
            root = api.info()["DockerRootDir"]
            mounted = {path for line in _mounts() if (path := line.split()[4]).startswith(root)}
            roots = {path for path in mounted if path.endswith("/merged")}
            return names | {f"mount {path}" for path in roots - _roots(api, theirs)}
        finally:
            daemon.close()


@contextlib.contextmanager
def own_footprint() -> Iterator[Footprint]:
    """Give this process and its children folders of their own for temporary files and caches, and
    make it the parent of the processes that killed children leave."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as top:
        footprint = Footprint(Path(top))
        new = {"TMPDIR": f"{top}/tmp", "XDG_CACHE_HOME": f"{top}/cache"}
        for folder in new.values():
            os.mkdir(folder)
        before = {name: os.environ.get(name) for name in new}
        os.environ.update(new)
        tempfile.tempdir = None  # found again, from TMPDIR
        try:
            yield footprint
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value
            tempfile.tempdir = None


def parents() -> dict[int, int]:
    """Return the parent of each process of the machine."""
    found: dict[int, int] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            found[int(pid)] = int(_stat(int(pid))[1])
    return found


def _descendants() -> set[int]:
    """Return the living descendants of this process; reap the dead ones that are its children."""
    of = parents()
    found: set[int] = set()
    new = {os.getpid()}
    while new:
        new = {pid for pid, parent in of.items() if parent in new} - found
        found |= new
    for pid in list(found):
        with contextlib.suppress(OSError):
            if _stat(pid)[0] == "Z" and of[pid] == os.getpid():
                os.waitpid(pid, os.WNOHANG)
                found.discard(pid)
    return {pid for pid in found if os.path.exists(f"/proc/{pid}")}


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


def _unfinished(top: Path) -> Iterator[Path]:
    """Yield the files of the image cache that are neither complete layers nor locks of one."""
    folder = top / "cache" / "agentgym-rl" / "images"
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
    for name in there:
        layer = name.removesuffix(".lock")
        if "." in layer or not {layer, f"{layer}.lock"} <= there:
            yield folder / name


def _roots(api: Any, containers: set[str]) -> set[str]:
    """Return the mounts of containers' root file systems."""
    found = set[str]()
    for id in containers:
        with contextlib.suppress(sdk.errors.APIError):  # it has just ended
            data = api.inspect_container(id)["GraphDriver"]["Data"] or {}
            found.add(data.get("MergedDir", ""))
    return found
