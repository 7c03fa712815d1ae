"""The running work: one program, or a session and its present cell; and their results."""

from __future__ import annotations

import os
import signal
import socket
import time

from .forking import Fork
from .loop import Feed, Loop, Output

INTERRUPT_GRACE_S = 0.5
"""The time a cell has to react to an interrupt."""
OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


def oom_kills() -> int:
    """Return the container's number of out-of-memory kills so far; 0 if it is unknown."""
    for path in OOM_COUNTERS:
        try:
            with open(path) as file:
                for line in file:
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        except OSError:
            continue
    return 0


class Job:
    """A program that runs once."""

    def __init__(self, request: dict) -> None:
        self.id = request["id"]
        self.request = request
        self.kind = request["op"]
        self.limits = request["limits"]
        self.why = ""
        """The reason the program was killed: the status of its result."""
        self.pid = 0
        self.ended: tuple = ()
        """The wait status and resource usage; () while the program runs."""
        self.killed = 0
        self.cpu_s = 0.0
        """The CPU time of the orphans that the program left."""
        self.output: Output
        self.fork: Fork
        self.stdin: list = []
        """The pipe of its standard input: the read end and, if there is input, the write end."""
        self.feed: Feed | None = None
        self.timer: list | None = None
        self.started = time.monotonic()
        self.oom_before = oom_kills()

    def stop(self, why: str) -> None:
        if not self.why and not self.ended:
            self.why = why
            if self.pid:
                os.kill(self.pid, signal.SIGKILL)

    def start_error(self) -> str:
        """Return the reason why the program did not start; "" if it did."""
        try:
            return self.fork.conn.recv(4096)[1:].decode("utf-8", "replace")
        except OSError:
            return ""

    def close(self) -> None:
        self.fork.close()
        self.output.close()
        if self.feed:
            self.feed.close()
        while self.stdin:
            os.close(self.stdin.pop())

    def result(self) -> dict:
        status, usage = self.ended
        code, kind = _code(status)
        why = self.why or self._status(code, kind, usage.ru_utime + usage.ru_stime)
        taken = self.output.take()
        return {
            "status": why,
            "exit_code": code,
            "signal": kind,
            **{name: taken[name] for name in ("stdout", "stderr")},
            "truncated": taken["truncated"] or why == "output_limit",
            "wall_ms": 1000 * (time.monotonic() - self.started),
            "cpu_ms": 1000 * (usage.ru_utime + usage.ru_stime + self.cpu_s),
            "max_rss_kb": usage.ru_maxrss,
            "killed_processes": self.killed,
            "state_lost": False,
        }

    def _status(self, code: int | None, kind: int | None, cpu_s: float) -> str:
        if code == 0:
            return "ok"
        # A program can send itself SIGXCPU before its limit. Half: the limit counts clock ticks.
        share = 0.5 if kind == signal.SIGXCPU else 1.0
        if kind in (signal.SIGXCPU, signal.SIGKILL) and cpu_s >= share * self.limits["cpu_s"]:
            return "cpu_limit"
        if kind == signal.SIGKILL:
            return "memory_limit" if oom_kills() > self.oom_before else "killed"
        # A program can fake this status, but gains nothing over a plain error.
        if self.kind == "run_python" and code == 1 and self.output.last_error_is("MemoryError"):
            return "memory_limit"
        return "error"


class Session:
    """An interpreter or shell; `pid` is 0 until its first message."""

    def __init__(self, number: int, kind: str, loop: Loop, limit: int) -> None:
        self.number, self.kind, self.pid = number, kind, 0
        self.loop = loop
        self.fork: Fork | None = None
        """The fork that made the process; None for a copy of a session, which that makes."""
        self.conn: socket.socket
        self.output = Output(loop, limit, lambda: self.stop("output_limit"))
        self.opening: int | None = None
        """The id of the request that waits for the session's first message."""
        self.closing: list = []
        """The ids of the requests that wait for the session's end."""
        self.ended: tuple = ()
        self.cell: int | None = None
        """The id of the request whose code the session runs."""
        self.why = ""
        self.started = 0.0
        self.timer: list | None = None
        self.feed: Feed | None = None

    def signal(self, kind: int) -> None:
        if not self.pid or self.ended:
            return
        for send in (os.killpg, os.kill):
            try:
                send(self.pid, kind)
            except (ProcessLookupError, PermissionError):
                continue
            if kind == signal.SIGINT:
                return

    def begin(self, id: int, data: bytes, timeout_s: float) -> None:
        self.cell, self.why, self.started = id, "", time.monotonic()
        self.timer = self.loop.later(timeout_s, lambda: self.stop("timeout"))
        end = os.dup(self.conn.fileno())  # a duplicate, as the original is watched for reading
        self.feed = Feed(self.loop, end, data, lambda: os.close(end))

    def stop(self, why: str) -> None:
        """Interrupt the cell; if it does not react, kill the session."""
        if self.cell is None or self.why:
            return
        self.why = why
        self.signal(signal.SIGINT)
        self.loop.cancel(self.timer)
        self.timer = self.loop.later(INTERRUPT_GRACE_S, lambda: self.signal(signal.SIGKILL))

    def result(self, message: bytes) -> dict:
        """Return the result of a cell; `message` is the session's reply, empty if that ended."""
        self.loop.cancel(self.timer)
        if self.feed:
            self.feed.close()
        self.cell = None  # before the last output is read, as there is nothing left to stop
        taken, code, kind = self.output.take(), None, None
        if not message:
            code, kind = _code(self.ended[0]) if self.ended else (None, None)
            status = "killed" if kind == signal.SIGKILL else "error"
        elif self.kind == "python":
            status = {0: "ok", 2: "memory_limit"}.get(message[0], "error")
        else:
            text = message.partition(b"\n")[0]
            code = int(text) if text.isdigit() else 1
            status = "error" if code else "ok"
        if taken["truncated"] and status in ("ok", "error"):
            status = "output_limit"
        return {
            "status": self.why or status,
            "exit_code": code,
            "signal": kind,
            **taken,
            "wall_ms": 1000 * (time.monotonic() - self.started),
            "state_lost": not message,
        }

    def close(self) -> None:
        self.loop.cancel(self.timer)
        if self.feed:
            self.feed.close()
        if self.fork:
            self.fork.close()
        else:
            self.loop.forget(self.conn.fileno())
            self.conn.close()
        self.output.close()


def _code(status: int) -> tuple:
    """Return (exit code, signal), one of them None."""
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None
