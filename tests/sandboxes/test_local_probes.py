"""Where the kernel refuses what isolation takes, the local backend refuses too, with the fix."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from arl_sandboxes.local import LocalBackend
from arl_sandboxes.local.probes import _fix

from agentgym_rl.gym import Capabilities, Probe, ProbeReport
from tests.kit.cases import cases

pytestmark = pytest.mark.slow

REFUSED = [sys.executable, str(Path(__file__).with_name("refused.py"))]


def probed(*command: str) -> dict:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def failed(report: dict) -> list[str]:
    return [name for name, ok, _, _ in report["probes"] if not ok and name != "cgroup"]


OTHER = 'isolation="landlock"'


def test_every_probe_passes_here():
    report = asyncio.run(LocalBackend(slots=1).probe())
    if not report.ok:
        pytest.skip(f"the local backend does not work here:\n{report.complaint()}")
    names = [probe.name for probe in report.probes]
    assert names[:3] == ["machine", "kernel", "user namespace"]
    assert names[-2:] == ["slot", "cgroup"]
    assert report.capabilities.missing(["network_isolated", "process_isolated", "disk"]) == []


@cases(
    "call, error, first, fix",
    [
        ("unshare", "EPERM", "user namespace", "seccomp=unconfined"),
        ("unshare", "ENOSPC", "user namespace", "user.max_user_namespaces=10000"),
        ("mount", "EPERM", "mount", "systempaths=unconfined"),
        ("mount_setattr", "EPERM", "read-only mounts", "procMount: Unmasked"),
        ("prctl", "EINVAL", "seccomp", "built without"),
        ("pivot_root", "EPERM", "slot", "read the interpreter's folder"),
    ],
)
def test_a_call_that_is_refused(call, error, first, fix):
    report = probed(*REFUSED, call, error)
    row = next(row for row in report["probes"] if row[0] == first)
    assert not report["ok"]
    assert failed(report)[0] == first
    assert fix in row[3]
    assert error in row[2] or str(getattr(errno, error)) in row[2]
    assert f"  {first}: {row[2]}; {row[3]}" in report["complaint"].splitlines()


def test_no_user_namespaces_left():
    """In a user namespace of its own, where that limit can be set without touching the machine."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no `unshare` (util-linux)")
    inner = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "bash", "-c", inner, "bash", *REFUSED]
    try:
        report = probed(*command)
    except AssertionError as error:
        pytest.skip(f"no user namespace to try it in: {error}")
    assert failed(report)[0] == "user namespace"
    assert "ENOSPC" in report["complaint"]
    assert "user.max_user_namespaces=10000" in report["complaint"]


@cases("call", ["unshare", "mount", "pivot_root"])
def test_without_namespaces_the_other_isolation_is_named_and_not_taken(call):
    report = probed(*REFUSED, call, "EPERM")
    row = next(row for row in report["probes"] if row[0] == OTHER)
    assert row[1] is True
    assert "would work here" in row[2]
    assert OTHER in report["refusal"]
    assert report["said"] == ""


def test_without_either_that_is_said():
    report = probed(*REFUSED, "prctl", "EINVAL")
    row = next(row for row in report["probes"] if row[0] == OTHER)
    assert row[1] is False
    assert "would not work either" in row[2]


@cases("call", ["unshare", "mount", "mount_setattr", "pivot_root"])
def test_the_other_isolation_needs_no_namespaces(call):
    report = probed(*REFUSED, call, "EPERM", "landlock")
    assert report["ok"], report
    assert report["said"] == "42\n"


@cases(
    "call, error, first, fix",
    [
        ("landlock_create_ruleset", "ENOSYS", "landlock", "Linux 6.2"),
        ("landlock_create_ruleset", "EOPNOTSUPP", "landlock", "lsm="),
        ("landlock_create_ruleset", "EPERM", "landlock", "container's filter"),
        ("setresuid", "EPERM", "users", "plain user"),
    ],
)
def test_what_the_other_isolation_needs(call, error, first, fix):
    if first == "users" and os.getuid():
        pytest.skip("only root needs that")
    report = probed(*REFUSED, call, error, "landlock")
    assert failed(report)[0] == first
    assert fix in report["complaint"]
    assert fix in report["refusal"]
    assert OTHER not in report["refusal"]


def readable_by_all(path: str) -> bool:
    return all(os.stat(part).st_mode & 0o005 for part in (path, *map(str, Path(path).parents)))


def test_an_interpreter_that_programs_cannot_read():
    if os.getuid() or readable_by_all(sys.base_prefix):
        pytest.skip("everybody can read this interpreter's folder")
    report = asyncio.run(LocalBackend(slots=1, isolation="landlock").probe())
    row = next(probe for probe in report.probes if probe.name == "folders")
    assert not row.ok
    assert sys.base_prefix in row.detail
    assert 'python="/usr/bin/python3"' in row.fix


def test_every_probe_of_the_other_isolation_passes_here():
    report = probed(*REFUSED, "unshare", "EPERM", "landlock")
    names = [row[0] for row in report["probes"] if row[1]]
    assert {"machine", "kernel", "landlock", "landlock domain", "seccomp", "slot"} <= set(names)


@cases(
    "name, number, words",
    [
        ("user namespace", errno.EPERM, "seccomp=unconfined"),
        ("user namespace", errno.EPERM, "unprivileged_userns_clone=1"),
        ("user namespace", errno.ENOSPC, "max_user_namespaces"),
        ("uid map", errno.EPERM, "hostUsers: false"),
        ("mount namespace", errno.EPERM, "seccomp=unconfined"),
        ("network, pid, ipc and uts namespaces", errno.EPERM, "hostUsers: false"),
        ("mount", errno.EPERM, "systempaths=unconfined"),
        ("read-only mounts", errno.ENOSYS, "seccomp=unconfined"),
        ("proc", errno.EPERM, "procMount: Unmasked"),
        ("seccomp", errno.EINVAL, "built without"),
    ],
)
def test_the_fix_of_each_probe(name, number, words):
    assert words in _fix(name, number)


def test_a_complaint_lists_what_is_required_and_failed():
    probes = [
        Probe("one", True, "fine"),
        Probe("two", False, "EPERM: no", "do this"),
        Probe("three", False, "absent", "do that", required=False),
        Probe("four", False, "gone"),
    ]
    report = ProbeReport("x", probes, Capabilities())
    assert not report.ok
    assert report.complaint() == "  two: EPERM: no; do this\n  four: gone"
