"""The lowest versions of the dependencies that are allowed: a day's commands work with them.

`make test-lowest` installs them in an environment of its own, and names its interpreter in
ARL_LOWEST_PYTHON.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("ARL_LOWEST_PYTHON", "")
LIMIT_S = 600
VERSIONS = """
import json, sys
from importlib.metadata import version
print(json.dumps({name: version(name) for name in sys.argv[1:]}))
"""
SMALL = ("--eval.num_tasks=16", "--rollout.groups_per_batch=2", "--weights.keep_versions=all")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(4 * LIMIT_S),
    pytest.mark.skipif(not PYTHON, reason="`make test-lowest` installs these versions"),
]


def run(*argv: str, cwd: Path) -> str:
    """Run the interpreter with the lowest versions; return its stdout."""
    done = subprocess.run([PYTHON, *argv], cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def arl(*argv: str, cwd: Path) -> str:
    return run("-m", "agentgym_rl", *argv, cwd=cwd)


def test_the_lowest_versions_are_installed(tmp_path):
    script = ROOT / "scripts/lowest_versions.py"
    listed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    lowest = dict(line.split("==") for line in listed.stdout.split())
    names = {name: name.partition("[")[0] for name in lowest}
    installed = json.loads(run("-c", VERSIONS, *names.values(), cwd=tmp_path))
    found = {name: Version(installed[bare]) for name, bare in names.items()}
    assert found == {name: Version(version) for name, version in lowest.items()}
    assert len(lowest) > 20


def test_train_evaluate_inspect_and_audit(tmp_path):
    command = ("train", "--env", "math", "--agent", "react", "--steps=2", "--run=first")
    arl(*command, *SMALL, cwd=tmp_path)
    found = json.loads(arl("eval", "--run=first", "--json", cwd=tmp_path))
    assert found["num_episodes"] == 16
    arl("inspect", "first", "--html", "first.html", cwd=tmp_path)
    assert "<html" in (tmp_path / "first.html").read_text()
    arl("audit", "first", cwd=tmp_path)


def test_check(tmp_path):
    for name in ("math", "tools"):
        assert f"{name}-v0 passes" in arl("check", name, cwd=tmp_path)


def test_the_configuration_and_the_pages(tmp_path):
    (tmp_path / "my.toml").write_text(arl("config", cwd=tmp_path))
    arl("train", "--config", "my.toml", "--dry-run", cwd=tmp_path)
    assert arl("docs", "install#extras", cwd=tmp_path).startswith("## Extras\n")
