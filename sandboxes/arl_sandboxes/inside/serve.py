"""The runner's main loop: it takes requests, forks, reaps, sweeps and replies."""

from __future__ import annotations

import argparse
import base64
import contextlib
import errno
import itertools
import json
import os
import signal
import socket
import sys
import time
from collections import deque
from typing import NoReturn

from arl_isolation import locks

from . import fork_server, program
from . import sweep as processes
from .files import WorkFolder
from .forking import Fork, ForkServer
from .jobs import Job
from .loop import Feed, Loop, Output
from .ports import Ports
from .sessions import Sessions

SWEEP_S = 12.0
"""The longest time processes may take to die, on a machine with other load."""
CLEAR_S = 20.0
"""The longest time the removal of all files may take."""


class Runner:
    def __init__(self, work: str, scratch: list, whole: bool, image: bool) -> None:
        self.work, self._whole = work, whole
        self.box = WorkFolder(work, image)
        self._emptied = [] if image else [self.box, *map(WorkFolder, scratch)]
        self.loop = Loop()
        self._ports = Ports(self.loop, lambda event: _send({"id": -1, "event": event}))
        self.null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._queue: deque = deque()
        self._job: Job | None = None
        self._sessions = Sessions(self)
        self._server = ForkServer()
        self._orphans, self._orphan_cpu_s = 0, 0.0
        self._unknown: dict = {}
        """The ends of processes with unknown pids; a new process may be among them."""
        self._pending = bytearray()

    def run(self) -> None:
        """Serve the host until it closes the connection."""
        woken, wake = socket.socketpair()
        for end in (woken, wake):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # process 1 ignores what it does not handle
        self.loop.watch(woken.fileno(), lambda: woken.recv(4096))
        self.loop.watch(0, self._listen)
        self._server.start()
        if not self._server.await_start():
            sys.exit("the fork server did not start")
        sweep = "all" if self._whole else "descendants"
        python = sys.version.split()[0]
        self.reply(0, {"protocol": 1, "python": python, "pid": os.getpid(), "sweep": sweep})
        while True:
            self.loop.turn()
            self._reap()
            self._settle()

    # ------------------------------------------------------------------ the host
    def _listen(self) -> None:
        data = os.read(0, 1 << 20)
        if not data:
            self._job = None
            self._sessions.open.clear()
            self.sweep()
            os._exit(0)
        self._pending += data
        if b"\n" not in data:
            return
        *lines, rest = bytes(self._pending).split(b"\n")
        self._pending = bytearray(rest)
        for line in lines:
            self._obey(json.loads(line))

    def _obey(self, request: dict) -> None:
        try:
            if request["op"] in ("run_python", "exec", "reset"):
                self._queue.append(request)
                self._next()
            else:
                done = self._operation(request["op"])(request)
                if done is not None:
                    self.reply(request["id"], done)
        except Exception as error:
            self.refuse(request["id"], error)

    def _operation(self, name: str):
        if name in ("open_session", "cell", "interrupt", "fork", "close_session"):
            return getattr(self._sessions, name)
        if name in ("cancel", "write_files", "read_file", "list_files", "collect"):
            return getattr(self, "op_" + name)
        if name in ("listen", "unlisten", "more", "send", "shut", "drop"):
            return getattr(self._ports, "op_" + name)
        raise ValueError(f"no operation is called {name!r}")

    @staticmethod
    def reply(id: int, done: dict) -> None:
        _send({"id": id, "ok": done})

    @staticmethod
    def refuse(id: int, error) -> None:
        text = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        _send({"id": id, "error": text, "errno": getattr(error, "errno", None) or 0})

    # ------------------------------------------------------------------ one program
    def _next(self) -> None:
        while self._queue and not self._job:
            request = self._queue.popleft()
            try:
                (self._reset if request["op"] == "reset" else self._start)(request)
            except Exception as error:
                self.refuse(request["id"], error)

    def _start(self, request: dict) -> None:
        limits = request["limits"]
        self.box.write(request.get("files", {}), limits["file_mb"] << 20)
        self.box.open_up()
        order = _order(request)
        stdin = base64.b64decode(request.get("stdin", ""))
        job = Job(request)
        job.output = Output(self.loop, limits["output_bytes"], lambda: job.stop("output_limit"))
        job.stdin = list(os.pipe()) if stdin else [os.dup(self.null)]
        job.fork = self.fork(
            [job.stdin[0], *job.output.writers],
            order,
            lambda pid: self._has_begun(job, pid, stdin),
            lambda why: self._did_not_begin(job, why),
        )
        self._job = job

    def fork(self, handles: list, order: dict, begun, failed) -> Fork:
        return Fork(self.loop, self._server, handles, order, begun, failed)

    def _has_begun(self, job: Job, pid: int, stdin: bytes) -> None:
        job.pid, job.started = pid, time.monotonic()
        job.ended = self.ended_unknown(pid)
        self._orphan_cpu_s = 0.0
        job.output.close_writers()
        os.close(job.stdin.pop(0))
        if job.stdin:
            writer = job.stdin.pop()
            job.feed = Feed(self.loop, writer, stdin, lambda: os.close(writer))
        if job.why:  # cancelled in the meantime
            processes.kill(pid)
        job.timer = self.loop.later(job.limits["wall_s"], lambda: job.stop("timeout"))

    def _did_not_begin(self, job: Job, why: str) -> None:
        job.close()
        self._job = None
        self.refuse(job.id, OSError(0, why))

    def _finish(self, job: Job) -> None:
        self.loop.cancel(job.timer)
        self._job = None
        if self._sessions.open:  # their orphans may be among those that ended in the meantime
            self._orphan_cpu_s = 0.0
        job.killed = self.sweep()
        job.cpu_s = self._orphan_cpu_s
        start_error = job.start_error()
        result = job.result()
        job.close()
        if start_error:
            self.refuse(job.id, OSError(0, start_error))
            return
        self.reply(job.id, {**result, **self.box.collect(job.request.get("collect", []))})

    def _reset(self, request: dict) -> None:
        """Remove all sessions and processes, and the files unless they are an image's; exit if that
        fails."""
        self._sessions.end_all("the sandbox was reset")
        self.sweep()
        until = time.monotonic() + CLEAR_S
        for box in self._emptied:
            try:
                box.clear(until)
            except Exception as error:
                _give_up(f"files could not be removed: {error}")
        self.reply(request["id"], {})

    # ------------------------------------------------------------------ the dead
    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self._server.pid:
                self._server.pid = 0
                continue
            known = [self._job] if self._job else []
            for running in (*known, *self._sessions.open.values()):
                if running.pid == pid:
                    running.ended = (status, usage)
                    break
            else:
                self._orphans += 1
                self._unknown[pid] = status, usage
                self._orphan_cpu_s += usage.ru_utime + usage.ru_stime

    def ended_unknown(self, pid: int) -> tuple:
        """Return the end of a new process that ended before its pid was known; () if it did not."""
        return self._unknown.pop(pid, ())

    def _settle(self) -> None:
        """Conclude the sessions and the program that have ended."""
        self._sessions.settle()
        if self._job and self._job.ended:
            self._finish(self._job)
        self._next()
        if not self._job and not self._sessions.open:
            self._unknown.clear()
            if not self._server.pid:
                with contextlib.suppress(OSError):
                    self._server.start()  # so that the next program does not have to wait for it

    def sweep(self) -> int:
        """Kill all processes except the present program and the sessions; return their number."""
        killed: set = set()
        deadline = time.monotonic() + SWEEP_S
        for turn in itertools.count():
            if time.monotonic() > deadline:
                break
            before = self._orphans
            self._reap()
            spared = self._sessions.pids()
            if self._job:
                spared.add(self._job.pid)
            alone = not spared
            if self._server.pid:
                spared.add(self._server.pid)
            strays = processes.strays(spared)
            self._reap()
            # A process that forks and dies all the time may be missed: its parent was reaped then.
            if not strays and self._orphans == before:
                return len(killed)
            killed |= strays
            if turn and self._whole and alone:
                processes.kill(-1)  # no fork outruns it; the fork server dies with the others
            else:
                for pid in strays:
                    processes.kill(pid)
            if strays:
                time.sleep(min(0.0003 * 2**turn, 0.02))
        _give_up(f"processes could not be killed: {sorted(killed)}")

    # ------------------------------------------------------------------ files, and the rest
    def op_write_files(self, request: dict) -> dict:
        self.box.open_up()
        self.box.write(request["files"], request["limits"]["file_mb"] << 20)
        return {}

    def op_read_file(self, request: dict) -> dict:
        return {"data": self.box.read_text(request["path"], request["max_bytes"])}

    def op_list_files(self, request: dict) -> dict:
        return {"files": self.box.sizes()}

    def op_collect(self, request: dict) -> dict:
        return self.box.collect(request["paths"])

    def op_cancel(self, request: dict) -> dict:
        for waiting in [each for each in self._queue if each["id"] == request["of"]]:
            self._queue.remove(waiting)
            self.refuse(waiting["id"], OSError(errno.ECANCELED, "cancelled"))
        if self._job and self._job.id == request["of"]:
            self._job.stop("killed")
        self._sessions.cancel(request["of"])
        return {}


def _order(request: dict) -> dict:
    """Build the order for a new process."""
    limits = request["limits"]
    if request["op"] == "run_python":
        return {"become": "main", "code": request["code"], "limits": limits}
    cwd, env = request.get("cwd", "."), request.get("env", {})
    argv = request["argv"]
    return {"become": "program", "argv": argv, "cwd": cwd, "env": env, "limits": limits}


def _give_up(why: str) -> NoReturn:
    """Exit, since the remaining state of the sandbox must not reach another program."""
    _send({"id": 0, "error": why, "errno": 0})
    os._exit(1)


def _send(message: dict) -> None:
    data = memoryview(json.dumps(message).encode() + b"\n")
    while data:
        data = data[os.write(1, data) :]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", default="/box")
    parser.add_argument("--scratch", default="")
    parser.add_argument("--own-pid-namespace", action="store_true")
    parser.add_argument("--preimport", default="")
    parser.add_argument("--image", action="store_true")
    parser.add_argument("--fork-server", action="store_true")
    options = parser.parse_args()
    program.in_image = options.image
    if options.fork_server:
        _settle_in(options.work, options.image)
        for name in filter(None, options.preimport.split(",")):
            __import__(name)
        fork_server.main(options.work)
    whole = options.own_pid_namespace
    # Process 1 of an image's container has its namespace for itself, whoever it is.
    first = os.getpid() == 1
    root = os.getuid() == 0 and not (options.image and first)
    if whole and (root or (not first and not processes.is_only_process())):
        sys.exit(
            f"--own-pid-namespace: refused as user {os.getuid()}, process {os.getpid()}: expected "
            "a plain user, and process 1 or no other process of that user"
        )
    _settle_in(options.work, options.image)
    program.adopt_orphans()
    Runner(
        options.work, [path for path in options.scratch.split(",") if path], whole, options.image
    ).run()


def _settle_in(work: str, image: bool) -> None:
    """Close this process to programs, and reduce its environment to that of programs."""
    locks.set_dumpable(False)
    os.umask(0o022)
    path = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    given = dict(os.environ) if image else {}
    given.pop("HOSTNAME", None)
    os.environ.clear()
    os.environ.update({"PATH": path, "HOME": work, "LANG": "C.UTF-8", **given})
    sys.argv = ["main.py"]
