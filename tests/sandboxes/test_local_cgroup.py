"""Control groups: what is written to which file, in both versions, and for real where we may."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from arl_sandboxes.local.cgroup import (
    OVERHEAD_MB,
    SPARE_PROCESSES,
    find,
    group_name,
    usable,
)


def machine(root: Path, mounts: str, own: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mounts").write_text(mounts)
    (root / "proc/self/cgroup").write_text(own)
    return root


def version_2(root: Path, controllers: str = "cpu memory pids") -> Path:
    folder = root / "sys/fs/cgroup/user/scope"
    folder.mkdir(parents=True)
    (folder / "cgroup.subtree_control").write_text(controllers)
    mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\nproc /proc proc rw 0 0\n"
    return machine(root, mounts, "0::/user/scope\n")


def version_1(root: Path) -> Path:
    mounts = ""
    for controller in ("memory", "pids"):
        (root / f"cg/{controller}/mine").mkdir(parents=True)
        mounts += f"cgroup /cg/{controller} cgroup rw,nosuid,{controller} 0 0\n"
    return machine(root, mounts, "4:memory:/mine\n3:pids:/mine\n0::/\n")


def prepared(folder: Path, events: str, text: str) -> None:
    """A group's folder, which only a kernel would fill."""
    folder.mkdir()
    (folder / events).write_text(text)


def test_version_2_files(tmp_path: Path):
    hierarchy, words = find(version_2(tmp_path))
    folder = tmp_path / "sys/fs/cgroup/user/scope"
    assert hierarchy is not None
    assert words == f"version 2, {folder}"
    prepared(folder / "a", "memory.events", "low 0\noom 5\noom_kill 3\noom_group_kill 9\n")
    group = hierarchy.make("a")
    group.add(42)
    group.limit(memory_mb=100, processes=8)
    written = {path.name: path.read_text() for path in (folder / "a").iterdir()}
    assert written["cgroup.procs"] == "42"
    assert written["memory.max"] == str((100 + OVERHEAD_MB) << 20)
    assert written["memory.swap.max"] == "0"
    assert written["pids.max"] == str(8 + SPARE_PROCESSES)
    assert group.oom_kills() == 3


def test_version_1_files(tmp_path: Path):
    hierarchy, words = find(version_1(tmp_path))
    memory, pids = tmp_path / "cg/memory/mine", tmp_path / "cg/pids/mine"
    assert hierarchy is not None
    assert words == f"version 1, {memory}"
    prepared(memory / "a", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    group = hierarchy.make("a")
    group.add(42)
    group.limit(memory_mb=100, processes=8)
    size = str((100 + OVERHEAD_MB) << 20)
    assert (memory / "a/cgroup.procs").read_text() == (pids / "a/cgroup.procs").read_text() == "42"
    assert (memory / "a/memory.limit_in_bytes").read_text() == size
    assert (memory / "a/memory.memsw.limit_in_bytes").read_text() == size
    assert (pids / "a/pids.max").read_text() == str(8 + SPARE_PROCESSES)
    assert group.oom_kills() == 2


def test_limits_that_hold_are_known(tmp_path: Path):
    hierarchy, _ = find(version_2(tmp_path))
    assert hierarchy is not None
    folder = tmp_path / "sys/fs/cgroup/user/scope/a"
    prepared(folder, "memory.events", "oom_kill 0\n")
    group = hierarchy.make("a")
    assert not group.limited(memory_mb=100, processes=8)
    group.limit(memory_mb=100, processes=8)
    assert group.limited(memory_mb=100, processes=8)
    assert not group.limited(memory_mb=101, processes=8)


def test_controllers_are_asked_for_in_a_group_that_is_ours(tmp_path: Path):
    find(version_2(tmp_path, controllers=""))
    asked = tmp_path / "sys/fs/cgroup/user/scope/cgroup.subtree_control"
    assert asked.read_text() == "+memory +pids"


def test_a_machine_without_any(tmp_path: Path):
    hierarchy, words = find(machine(tmp_path, "", ""))
    assert hierarchy is None
    assert words == "no writable one with the memory controller"


def test_a_group_that_cannot_be_limited_is_not_used(tmp_path: Path):
    hierarchy, _ = find(version_2(tmp_path))
    assert hierarchy is not None
    assert "memory.events" in usable(hierarchy, "a")  # no kernel here that would make that file
    assert not (tmp_path / "sys/fs/cgroup/user/scope/a").exists()


def test_groups_of_dead_processes_are_swept(tmp_path: Path):
    hierarchy, _ = find(version_2(tmp_path))
    assert hierarchy is not None
    folder = tmp_path / "sys/fs/cgroup/user/scope"
    dead = 2**22 + 1  # above the kernel's highest
    names = {
        "dead": group_name(f"arl-{dead}-0-0"),
        "old, of another container": f"arl-{dead}-0-1.1",
        "of another container": f"arl-{dead}-0-2.1",
        "mine": group_name(f"arl-{os.getpid()}-0-0"),
        "nobody's": "other-1-2",
    }
    for name in names.values():
        (folder / name).mkdir()
    for name in ("old, of another container", "mine", "nobody's"):
        os.utime(folder / names[name], (0, 0))
    hierarchy.sweep()
    left = {path.name for path in folder.iterdir() if path.is_dir()}
    assert left == {names[name] for name in ("of another container", "mine", "nobody's")}


def test_for_real():
    hierarchy, words = find()
    if hierarchy is None:
        pytest.skip(words)
    if refused := usable(hierarchy, f"arl-{os.getpid()}-trial"):
        pytest.skip(f"{words}: {refused}")
    group = hierarchy.make(f"arl-{os.getpid()}-test")
    try:
        group.limit(memory_mb=100, processes=8)
        # It puts itself into the group, and then takes more than that allows.
        folders = " ".join(
            str(path / f"arl-{os.getpid()}-test") for path in hierarchy.folders.values()
        )
        script = (
            f"for f in {folders}; do echo $$ > $f/cgroup.procs; done; head -c 400m /dev/zero | tail"
        )
        done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=60)
        assert done.returncode != 0
        assert group.oom_kills() >= 1
        for larger_mb in (300, 50):
            group.limit(memory_mb=larger_mb, processes=8)
    finally:
        assert group.remove()
    assert group.oom_kills() >= 1
