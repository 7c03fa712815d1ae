"""A folder in place of a sandbox: a task's files, the tools of an agent, and the verification."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arl_envs.harbor.task import HarborTask

NONCE = "5f1c9e"
PATIENCE_S = 240


def written(root: Path, files: Mapping[str, bytes]) -> Path:
    """Write files below a folder, and return it."""
    for path, data in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return root


def shell(command: str, cwd: Path) -> str:
    """Run a shell command in a folder, and return its output."""
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.stdout + done.stderr


class Place:
    """A task's image as a folder."""

    def __init__(self, root: Path, task: HarborTask) -> None:
        self.root, self.task = root, task
        shutil.rmtree(root, ignore_errors=True)
        repo = {
            path.removeprefix("repo/"): data
            for path, data in task.environment.items()
            if path.startswith("repo/")
        }
        self.app = written(root / "app", repo)
        for line in task.environment["Dockerfile"].decode().splitlines():
            if line.startswith("RUN "):
                assert shell(line.removeprefix("RUN "), self.app) == ""

    def do(self, steps: Sequence[Mapping[str, Any]]) -> list[str]:
        """Call the tools as an agent does, and return what bash printed."""
        said: list[str] = []
        for step in steps:
            given = step["arguments"]
            if step["name"] == "bash":
                said.append(shell(given["command"], self.app))
                continue
            path = self.app / given["path"]
            text = path.read_text()
            assert text.count(given["old"]) == 1, (given, text)
            path.write_text(text.replace(given["old"], given["new"]))
        return said

    def solve(self) -> None:
        """Run the solution as the oracle does."""
        solution = written(self.root / "solution", self.task.solution)
        said = shell(f"sh {solution}/solve.sh", self.app)
        assert said == "", said

    def verify(self) -> dict[str, Any]:
        """Run test.sh, and return its reward.json; {} if there is none."""
        return verified(self.root, written(self.root / "tests", self.task.tests), self.app)


def kill_left(app: Path) -> None:
    """Kill the process groups that work in a folder, as a sandbox does at its end: a program that
    forks at every turn may escape a judge whose machine is busy, and would take a core forever."""
    for number in (path.name for path in Path("/proc").iterdir() if path.name.isdigit()):
        with contextlib.suppress(OSError):
            if Path(os.readlink(f"/proc/{number}/cwd")).is_relative_to(app):
                os.killpg(os.getpgid(int(number)), signal.SIGKILL)


def verified(root: Path, tests: Path, app: Path) -> dict[str, Any]:
    """Run test.sh with a nonce, and return its reward.json; {} if there is none or another's."""
    logs = root / "logs"
    folders = ["--tests", str(tests), "--app", str(app), "--logs", str(logs)]
    try:
        subprocess.run(
            ["sh", str(tests / "test.sh"), *folders],
            cwd=app,
            input=NONCE.encode() + b"\n",
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
            start_new_session=True,
        )
    finally:
        kill_left(app)
    try:
        found = json.loads((logs / "reward.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if found.get("nonce", "") == NONCE else {}
