"""`arl doctor sandbox`: what works here, in words and as JSON."""

import json
import subprocess
import sys

import pytest

from agentgym_rl.inspect.probe_report import probe_text
from agentgym_rl.sandbox import Capabilities, Probe, ProbeReport

WORKS = Probe("kernel", True, "6.1")
FAILS = Probe("user namespace", False, "EPERM: " + "not " * 40 + "permitted", "change it")
OPTIONAL = Probe("cgroup", False, "none", "run as root", required=False)


def doctor(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentgym_rl", "doctor", "sandbox", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_what_fails_is_said_with_its_fix():
    text = probe_text(ProbeReport("local", [WORKS, FAILS, OPTIONAL], Capabilities()))
    assert "FAIL user namespace  EPERM: not" in text
    assert "\n                     change it\n" in text
    assert "no   cgroup          none" in text
    assert text.endswith("sandbox local: does not work on this machine")
    assert max(map(len, text.splitlines())) <= 100


def test_what_works_is_said_with_what_programs_get():
    given = Capabilities(exec=True, sessions=frozenset({"shell", "python"}))
    text = probe_text(ProbeReport("local", [WORKS, OPTIONAL], given))
    assert "sandbox local: works; programs there get" in text
    assert "  exec               yes\n  sessions           python, shell\n" in text
    assert "  total_memory       no\n" in text


@pytest.mark.slow
def test_the_command_agrees_with_the_backend():
    done = doctor("--json")
    report = json.loads(done.stdout)
    assert report["backend"] == "local"
    assert done.returncode == (0 if report["ok"] else 1)
    assert {probe["name"] for probe in report["probes"]} >= {"machine", "kernel", "cgroup"}


def test_an_unknown_backend_is_named():
    done = doctor("--sandbox=lokal")
    assert done.returncode == 2
    assert "no sandbox is called 'lokal'; did you mean local?" in done.stderr


@pytest.mark.slow
def test_limits_come_from_the_configuration():
    done = doctor("--sandbox.options.limits.wal_s=1")
    assert done.returncode == 2
    assert "wal_s" in done.stderr
    assert "there are wall_s, cpu_s, memory_mb" in done.stderr
    assert doctor("--sandbox.options.limits.wall_s=1.5").returncode == 0


@pytest.mark.slow
def test_doctor_has_the_probes_of_the_isolation_it_is_asked_for():
    done = doctor("--sandbox.options.isolation=landlock", "--json")
    names = [probe["name"] for probe in json.loads(done.stdout)["probes"]]
    assert "user namespace" not in names
    assert "landlock" in names
    wrong = doctor("--sandbox.options.isolation=chroot")
    assert wrong.returncode != 0
    assert "expected 'namespaces' or 'landlock'" in wrong.stderr
