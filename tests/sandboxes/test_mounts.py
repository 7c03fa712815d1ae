"""Folders of this machine in sandboxes: what is refused, before a sandbox is made."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from arl_sandboxes.arguments import check_work_dir, checked_mounts
from arl_sandboxes.local import LocalBackend

from agentgym_rl.core import ConfigError, ImageError
from agentgym_rl.gym import make_sandbox
from tests.contracts.sandboxes import working

PLACES = [
    "", ".", "/", "agents", "opt/agents", "../opt/agents", "/opt", "/opt/", "/opt/agents/",
    "/opt//agents", "/opt/../usr", "/opt/./agents", "/opt/a\0b", "/usr", "/usr/lib", "/proc",
    "/proc/1", "/sys/x", "/dev/shm", "/tests", "/tests/x", "/solution", "/logs/verifier", "/box",
    "/app", "/tmp/agents", "/root", "/home/x", "/etc", "/etc/ssl", "/packages", "/optional/x",
    "/opt/arl", "/opt/arl/bin", "/opt/arl/bin/x",
]  # fmt: skip


@pytest.mark.parametrize("backend", ["local", "docker"])
@pytest.mark.parametrize("place", PLACES, ids=repr)
def test_a_place_that_could_hide_something_is_refused(tmp_path, backend, place):
    if backend == "docker":
        pytest.importorskip("docker")
    with pytest.raises(ConfigError, match=r"mounts: got .*; allowed is a folder below /opt"):
        make_sandbox(backend, mounts={place: str(tmp_path)})


@pytest.mark.parametrize("other", ["/opt/a", "/opt/a/b", "/opt/a/b/c"])
def test_folders_in_each_other_are_refused(tmp_path, other):
    pair = {"/opt/a/b": str(tmp_path), other: str(tmp_path)}
    if len(pair) == 1:
        assert checked_mounts(pair) == {"/opt/a/b": str(tmp_path)}
        return
    with pytest.raises(ConfigError, match="overlaps /opt/a/b"):
        checked_mounts(pair)


def test_a_folder_that_is_missing_is_named(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for source in (str(tmp_path / "none"), str(file), "", 7, None):
        with pytest.raises(ConfigError, match=r"'/opt/a' is to be .*, which is no folder"):
            LocalBackend(mounts={"/opt/a": source})  # type: ignore[dict-item]
    for mounts in ("/opt/a", ["/opt/a"]):
        with pytest.raises(ConfigError, match=r"mounts: got .*expected"):
            LocalBackend(mounts=mounts)  # type: ignore[arg-type]


def test_the_home_folder_and_relative_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agents").mkdir()
    for source in ("~/agents", "agents", "./agents/"):
        assert checked_mounts({"/opt/a": source}) == {"/opt/a": str(tmp_path / "agents")}


def test_work_folders_that_overlap_are_refused():
    check_work_dir("t", "/app", ["/opt/agents"])
    check_work_dir("t", "/opt/agents2", ["/opt/agents"])
    for folder in ("/opt/agents", "/opt/agents/x", "/opt", "/"):
        with pytest.raises(ImageError, match="t: its work folder"):
            check_work_dir("t", folder, ["/mnt/x", "/opt/agents"])


def test_backends_without_it_say_so(tmp_path):
    with pytest.raises(ConfigError, match="isolation 'landlock' has none"):
        LocalBackend(isolation="landlock", mounts={"/opt/a": str(tmp_path)})
    pytest.importorskip("e2b")
    with pytest.raises(ConfigError, match=r"sandbox e2b.*mounts"):
        make_sandbox("e2b", api_key="k", mounts={"/opt/a": str(tmp_path)})


def test_a_place_of_the_interpreter_is_refused(tmp_path):
    working("local")
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\nprintf 'True\\n/opt/python\\n{os.__file__}\\n'\n")
    python.chmod(0o755)
    backend = LocalBackend(python=str(python), mounts={"/opt/python": str(tmp_path)})
    with pytest.raises(ConfigError, match="overlaps /opt/python, the programs' Python"):
        asyncio.run(backend.probe())


def test_packages_in_a_shown_folder_are_seen_even_where_they_are_hidden(tmp_path):
    working("local")
    top = Path(sys.base_prefix)
    folder = next(top.glob("lib/python3*/site-packages"), None)
    if folder is None or not any(folder.iterdir()) or str(top) == "/usr":
        pytest.skip(f"no package is installed beside the interpreter of {top}")

    async def listed() -> list[str]:
        async with (
            LocalBackend(slots=1, mounts={"/opt/a": str(folder.parent)}) as backend,
            await backend.create() as sandbox,
        ):
            paths = (str(folder), "/opt/a/site-packages")
            return [(await sandbox.exec(["ls", path])).stdout_text for path in paths]

    hidden, shown = asyncio.run(listed())
    assert hidden == ""
    assert shown
