"""`arl` as a user runs it, and what it may leave behind."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .forked import ForkedArl

SMALL = (
    "--steps=4",
    "--eval.num_tasks=32",
    "--rollout.groups_per_batch=4",
    "--rollout.group_size=4",
    "--logging.progress=plain",
)
"""A run that is over in seconds."""


def descendants(pid: int) -> dict[int, str]:
    """Command lines of the living processes below `pid`."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: dict[int, str] = {}
    todo = [pid]
    while todo:
        for child in parents.get(todo.pop(), []):
            with contextlib.suppress(OSError):
                found[child] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
                todo.append(child)
    return found


def gone(pids: Iterator[int] | list[int], *, within_s: float = 60.0) -> bool:
    """Whether all processes end within the time."""
    end = time.monotonic() + within_s
    left = list(pids)
    while left and time.monotonic() < end:
        left = [pid for pid in left if Path(f"/proc/{pid}").exists()]
        time.sleep(0.05)
    return not left


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("arl-*")}


def _executed(words: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "agentgym_rl", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=env, **pipes)


class Run:
    """A started `arl train`; `executed`: as a user starts it, not from a process that is warm."""

    def __init__(self, folder: Path, *args: str, executed: bool = False) -> None:
        self.begin(folder, f"--run={folder}", *args, executed=executed)

    @classmethod
    def resuming(cls, folder: Path, *args: str) -> "Run":
        """Start `arl train --resume`."""
        run = cls.__new__(cls)
        run.begin(folder, f"--resume={folder}", *args)
        return run

    def begin(self, folder: Path, *args: str, executed: bool = False) -> None:
        self.folder = folder
        words = ["train", "--json", *args]
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": path}
        self.process = _executed(words, env) if executed else ForkedArl(*words, env=env)

    def wait(self, timeout_s: float = 240) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err

    def result(self) -> dict:
        code, out, err = self.wait()
        assert code == 0, err
        return json.loads(out)

    def metrics(self) -> list[dict]:
        text = (self.folder / "metrics.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def wait_for_step(self, step: int, timeout_s: float = 200) -> None:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(FileNotFoundError):
                if len(self.metrics()) > step:
                    return
            time.sleep(0.05)
        raise AssertionError(f"no step {step}; stderr: {self.wait(5)[2]}")

    def child(self, name: str) -> int:
        """The pid of the child whose command line contains `name`."""
        (pid,) = [p for p, line in descendants(self.process.pid).items() if f" {name} " in line]
        return pid

    def leftovers(self) -> set[str]:
        """Shared memory of this run (its folders end in the process id)."""
        return {name for name in shared_memory() if name.endswith(f"-{self.process.pid}")}


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Run]]:
    """Start `arl train` with small defaults; whatever is left is killed at the end."""
    runs: list[Run] = []

    def make(*args: str, executed: bool = False) -> Run:
        run = Run(tmp_path / f"run{len(runs)}", *SMALL, *args, executed=executed)
        runs.append(run)
        return run

    yield make
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.communicate(timeout=60)
