"""The tests' end of a driver: how one is started for each mode, and asked over a pipe."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from arena import CONTAINER_MODES, DOCKER, GVISOR

from tests.exhaustive import REQUIRED

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

PLAIN_UID = 12345
SYSTEM_PYTHON = "/usr/bin/python3"


class Driver:
    """One mode. `ask` has a deadline; a driver that misses it, or dies, is of no use any more."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command, env=environment, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._read = b""

    def ask(self, timeout_s: float, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        answer = self.answer(timeout_s)
        assert "error" not in answer, answer["error"]
        return answer

    def answer(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        while b"\n" not in self._read:
            ready, _, _ = select.select([handle], [], [], timeout_s)
            data = os.read(handle, 1 << 16) if ready else b""
            if not data:
                self.close()
                pytest.fail(f"the driver {'died' if ready else f'said nothing for {timeout_s} s'}")
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def plain_user(folder: Path) -> tuple[list[str], str]:
    """Command and PYTHONPATH of a driver that is nobody in particular.

    Raises:
        OSError: this machine cannot have one; says why.
    """
    if os.getuid():
        return [sys.executable], os.pathsep.join(map(str, paths(ROOT)))
    if not os.access(SYSTEM_PYTHON, os.X_OK):
        raise OSError(f"there is no {SYSTEM_PYTHON} that a plain user could run")
    if not shutil.which("setpriv"):
        raise OSError("there is no setpriv (apt-get install util-linux)")
    skip = shutil.ignore_patterns("__pycache__")
    for part in ("agentgym_rl", "arl_isolation", "sandboxes", "tests/security"):
        shutil.copytree(ROOT / part, folder / part, ignore=skip)
    become = ["setpriv", f"--reuid={PLAIN_UID}", f"--regid={PLAIN_UID}", "--clear-groups"]
    return [*become, SYSTEM_PYTHON], os.pathsep.join(map(str, paths(folder)))


def paths(root: Path) -> list[Path]:
    return [root, root / "sandboxes", root / "tests/security"]


def start(mode: str, folder: Path) -> Driver:
    """A driver that is ready; skips, or fails where `ARL_REQUIRE` asks for it, if there is none."""
    plain = mode.endswith("user")
    if plain:
        try:
            python, path = plain_user(folder)
        except OSError as error:
            give_up(mode, str(error))
    elif mode in CONTAINER_MODES:
        if not importlib.util.find_spec("docker"):
            give_up(mode, "the docker SDK is not installed")
        python, path = [sys.executable], os.pathsep.join(map(str, paths(ROOT)))
    else:
        if os.getuid():
            give_up(mode, "the tests do not run as root")
        python, path = [sys.executable], os.pathsep.join(map(str, paths(ROOT)))
    canary, temporary = folder / "canary", folder / "tmp"
    canary.mkdir()
    temporary.mkdir()
    environment = {
        "PATH": os.environ["PATH"], "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1",
        "ARL_SECURITY_SECRET": secrets.token_hex(), "TMPDIR": str(temporary),
    }  # fmt: skip
    if mode in CONTAINER_MODES and "DOCKER_HOST" in os.environ:
        environment["DOCKER_HOST"] = os.environ["DOCKER_HOST"]
    if plain and not os.getuid():
        os.chown(canary, PLAIN_UID, PLAIN_UID)
        os.chown(temporary, PLAIN_UID, PLAIN_UID)
    driver_file = folder / "tests/security/driver.py"
    driver_file = driver_file if driver_file.exists() else HERE / "driver.py"
    driver = Driver(
        [*python, "-P", "-W", "error", str(driver_file), mode, str(canary)], environment
    )
    greeting = driver.answer(60)
    if "ready" not in greeting:
        driver.close()
        give_up(mode, greeting["unavailable"])
    return driver


def give_up(mode: str, why: str) -> None:
    part = {DOCKER: "docker", GVISOR: "runsc"}.get(mode, "local")
    if part in REQUIRED:
        pytest.fail(f"ARL_REQUIRE has {part}, and mode {mode!r} is not possible: {why}")
    pytest.skip(f"mode {mode!r} is not possible here: {why}")
