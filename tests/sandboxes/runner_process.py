"""A runner as a child of a test: a plain user, process 1 of a pid namespace of its own."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from arl_sandboxes import runner

USER = 345_678
NAMESPACE = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]
BECOME = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs"]
LIMITS = {
    "wall_s": 20,
    "cpu_s": 10,
    "memory_mb": 512,
    "file_mb": 4,
    "open_files": 64,
    "output_bytes": 100_000,
    "processes": 16,
}
ANSWER_S = 30


def text(data: bytes | str) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


class RunnerProcess:
    def __init__(self, process: subprocess.Popen[bytes], work: str) -> None:
        self.process, self.work = process, work
        self._count = 0
        self._pending = b""
        self._others: dict[int, dict[str, Any]] = {}

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The reply's "ok", or the whole of a refusal."""
        message = self.answer(self.post(op, **fields))
        return message.get("ok", message)

    def post(self, op: str, **fields: Any) -> int:
        assert self.process.stdin
        self._count += 1
        request = json.dumps({"id": self._count, "op": op, **fields})
        self.process.stdin.write(request.encode() + b"\n")
        self.process.stdin.flush()
        return self._count

    def answer(self, id: int) -> dict[str, Any]:
        while id not in self._others:
            message = json.loads(self._line())
            self._others[message["id"]] = message
        return self._others.pop(id)

    def python(self, code: str, *, limits: dict[str, float] | None = None, **fields: Any) -> Any:
        found = self.ask("run_python", code=text(code), limits=LIMITS | (limits or {}), **fields)
        return _decoded(found)

    def command(self, *argv: str, **fields: Any) -> dict[str, Any]:
        return _decoded(self.ask("exec", argv=argv, limits=LIMITS, **fields))

    def open(self, kind: str = "python") -> int:
        return self.ask("open_session", kind=kind, limits=LIMITS)["session"]

    def cell(self, session: int, code: str, timeout_s: float = 20) -> dict[str, Any]:
        return _decoded(self.ask("cell", session=session, code=text(code), timeout_s=timeout_s))

    def _line(self) -> bytes:
        assert self.process.stdout
        while b"\n" not in self._pending:
            ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_S)
            assert ready, f"the runner did not answer within {ANSWER_S} s"
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            assert data, "the runner ended"
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line


@contextmanager
def running(
    work: Path, *, python: str = "/usr/bin/python3", options: Sequence[str] = ()
) -> Iterator[RunnerProcess]:
    """A runner whose work folder is `work`."""
    work.mkdir()
    os.chown(work, USER, USER)
    for folder in work.parents:  # temporary ones are closed to others
        if folder.stat().st_uid == os.getuid() and str(folder).count("/") > 1:
            folder.chmod(folder.stat().st_mode | 0o011)
    command = [*NAMESPACE, *BECOME, python, "-I", "-X", "utf8", "-c", runner.source()]
    command += ["--work", str(work), "--own-pid-namespace", *options]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PATH": "/usr/bin:/bin"}
    )
    with process:
        try:
            found = RunnerProcess(process, str(work))
            hello = found.answer(0)["ok"]
            assert (hello["pid"], hello["sweep"], hello["protocol"]) == (1, "all", 1)
            yield found
        finally:
            process.kill()


def _decoded(found: dict[str, Any]) -> dict[str, Any]:
    for name in ("stdout", "stderr"):
        if name in found:
            found[name] = base64.b64decode(found[name])
    return found
