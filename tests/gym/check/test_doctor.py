"""`arl doctor`: what works here, in words and as JSON."""

import asyncio
import json
import subprocess
import sys
from importlib import metadata

import pytest
from arl_check import machine as module
from arl_check.machine import machine_text, probe_text

from agentgym_rl.core import ConfigError
from agentgym_rl.gym import Capabilities, Probe, ProbeReport
from tests.e2e.forked import arl

WORKS = Probe("kernel", True, "6.1")
FAILS = Probe("user namespace", False, "EPERM: " + "not " * 40 + "permitted", "change it")
OPTIONAL = Probe("cgroup", False, "none", "run as root", required=False)


def doctor(*argv: str) -> subprocess.CompletedProcess[str]:
    return arl("doctor", "sandbox", *argv)


def test_what_fails_is_said_with_its_fix():
    text = probe_text(ProbeReport("local", [WORKS, FAILS, OPTIONAL], Capabilities()))
    assert "FAIL user namespace  EPERM: not" in text
    assert "\n                     change it\n" in text
    assert "no   cgroup          none" in text
    assert text.endswith("sandbox local: does not work on this machine")
    assert max(map(len, text.splitlines())) <= 80


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


# ---------------------------------------------------------------------- the whole machine
MACHINE = [
    *("python", "torch", "model", "shared memory", "disk", "open files", "GPU"),
    *("vLLM", "SGLang"),
]


def examined() -> dict[str, Probe]:
    return {probe.name: probe for probe in asyncio.run(module.examine())}


@pytest.mark.slow
def test_all_parts_of_the_machine_are_looked_at():
    found = examined()
    assert [*found][: len(MACHINE)] == MACHINE
    assert {"sandbox local", "sandbox docker", "sandbox e2b"} <= found.keys()
    required = {name for name, probe in found.items() if probe.required}
    assert required == set(module.REQUIRED)
    assert all(probe.fix for probe in found.values() if not probe.ok)
    assert found["torch"].detail.startswith(metadata.version("torch"))
    text = machine_text(list(found.values()))
    assert max(map(len, text.splitlines())) <= 80 or "/" in max(text.splitlines(), key=len)
    assert text.endswith("works here")


@pytest.mark.slow
def test_what_is_missing_is_said_with_its_fix(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "SHARED_MEMORY", tmp_path / "none")
    monkeypatch.setattr(module, "FREE_BYTES", 10**18)
    monkeypatch.setattr(module, "OPEN_FILES", 10**12)
    found = examined()
    failed = {name for name, probe in found.items() if probe.required and not probe.ok}
    assert failed == {"disk"}
    assert not found["shared memory"].ok  # a run takes the temporary folder then
    assert "--shm-size" in found["shared memory"].fix
    assert not found["open files"].ok
    assert machine_text(list(found.values())).endswith("missing for any run: disk")


def test_what_cannot_be_asked_does_not_keep_the_others_from_it(monkeypatch):
    def broken(python):
        raise RuntimeError("the driver is gone")

    async def never(self):
        raise ConfigError("no account")

    monkeypatch.setattr("arl_vllm.build.find_build", broken)
    monkeypatch.setattr("arl_sandboxes.docker.backend.DockerBackend.probe", never)
    found = examined()
    assert "RuntimeError: the driver is gone" in found["vLLM"].detail
    assert (found["sandbox docker"].ok, found["sandbox docker"].detail) == (False, "no account")
    assert found["torch"].ok


@pytest.mark.slow
def test_the_command_says_whether_runs_work_here():
    done = subprocess.run(
        [sys.executable, "-m", "agentgym_rl", "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1)
    assert [probe["name"] for probe in report["probes"]][: len(MACHINE)] == MACHINE
