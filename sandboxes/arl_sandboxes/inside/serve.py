"""The runner itself: takes requests, forks, reaps, sweeps, replies."""

from __future__ import annotations

import argparse
import base64
import errno
import gc
import json
import os
import signal
import socket
import sys
import time
from collections import deque

from . import program
from . import sweep as processes
from .files import Box
from .jobs import Job
from .loop import Feed, Loop, Output
from .sessions import Sessions

SWEEP_S = 5.0


class Runner:
    def __init__(self, work: str, whole: bool) -> None:
        self.work, self._whole = work, whole
        self.box = Box(work)
        self.loop = Loop()
        self.null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._queue: deque = deque()
        self._job: Job | None = None
        self._sessions = Sessions(self)
        self._orphans, self._orphan_cpu_s = 0, 0.0
        self._pending = bytearray()

    def run(self) -> None:
        """Serve the host until it hangs up."""
        woken, wake = socket.socketpair()
        for end in (woken, wake):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # process 1 ignores what it does not handle
        self.loop.watch(woken.fileno(), lambda: woken.recv(4096))
        self.loop.watch(0, self._listen)
        gc.collect()
        gc.freeze()
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
            if request["op"] in ("run_python", "exec"):
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
        if self._job or not self._queue:
            return
        request = self._queue.popleft()
        try:
            self._start(request)
        except Exception as error:
            self.refuse(request["id"], error)
            self._next()

    def _start(self, request: dict) -> None:
        limits = request["limits"]
        self.box.write(request.get("files", {}), limits["file_mb"] << 20)
        self.box.open_up()
        job = Job(request)
        job.output = Output(self.loop, limits["output_bytes"], lambda: job.stop("output_limit"))
        job.complaint, complaint = os.pipe()
        stdin = base64.b64decode(request.get("stdin", ""))
        reader, writer = os.pipe() if stdin else (os.dup(self.null), -1)
        try:
            become = self._program(request)
            job.pid = self.fork([reader, *job.output.writers, complaint], limits, become)
        except BaseException:
            job.output.close()
            for fd in (job.complaint, writer):
                if fd >= 0:
                    os.close(fd)
            raise
        finally:
            os.close(reader)
            os.close(complaint)
        job.output.close_writers()
        if stdin:
            job.feed = Feed(self.loop, writer, stdin, lambda: os.close(writer))
        job.timer = self.loop.later(limits["wall_s"], lambda: job.stop("timeout"))
        self._job = job

    def _program(self, request: dict):
        """What the forked process does, once it has its handles and limits."""
        if request["op"] == "run_python":
            code = base64.b64decode(request["code"])

            def become() -> None:
                os.close(3)
                program.run_main(code, self.work)

        else:
            argv, cwd, env = request["argv"], request.get("cwd", "."), request.get("env", {})

            def become() -> None:
                program.run_program(argv, cwd, env)

        return become

    def fork(self, handles: list, limits: dict, become) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            program.begin(handles, self.work, limits)
            become()
        except BaseException as error:
            os.write(3, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
        os._exit(125)

    def _finish(self, job: Job) -> None:
        self.loop.cancel(job.timer)
        if job.feed:
            job.feed.close()
        self._job = None
        self._orphan_cpu_s = 0.0
        job.killed = self.sweep()
        job.cpu_s = self._orphan_cpu_s
        grievance = job.grievance()
        result = job.result()
        if grievance:
            self.refuse(job.id, OSError(0, grievance))
            return
        self.reply(job.id, {**result, **self.box.collect(job.request.get("collect", []))})

    # ------------------------------------------------------------------ the dead
    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            known = [self._job] if self._job else []
            for running in (*known, *self._sessions.open.values()):
                if running.pid == pid:
                    running.ended = (status, usage)
                    break
            else:
                self._orphans += 1
                self._orphan_cpu_s += usage.ru_utime + usage.ru_stime

    def _settle(self) -> None:
        """Conclude what has ended."""
        self._sessions.settle()
        if self._job and self._job.ended:
            self._finish(self._job)
        self._next()

    def sweep(self) -> int:
        """Kill whatever is neither the present program nor a session's; how many there were."""
        killed: set = set()
        deadline = time.monotonic() + SWEEP_S
        while time.monotonic() < deadline:
            before = self._orphans
            self._reap()
            spared = self._sessions.pids()
            if self._job:
                spared.add(self._job.pid)
            strays = processes.strays(spared)
            self._reap()
            # One that forks and dies all the time may not be seen: but then its parent was reaped.
            if not strays and self._orphans == before:
                return len(killed)
            killed |= strays
            if self._whole and not spared:
                processes.kill(-1)
            else:
                for pid in strays:
                    processes.kill(pid)
            if strays:
                time.sleep(0.0003)
        _send({"id": 0, "error": f"processes could not be killed: {sorted(killed)}", "errno": 0})
        os._exit(1)

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
        return {}


def _send(message: dict) -> None:
    data = memoryview(json.dumps(message).encode() + b"\n")
    while data:
        data = data[os.write(1, data) :]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", default="/box")
    parser.add_argument("--own-pid-namespace", action="store_true")
    parser.add_argument("--preimport", default="")
    options = parser.parse_args()
    whole = options.own_pid_namespace
    if whole and (os.getuid() == 0 or (os.getpid() != 1 and not processes.alone())):
        sys.exit(
            f"--own-pid-namespace: refused as user {os.getuid()}, process {os.getpid()}: expected "
            "a plain user, and process 1 or no other process of that user"
        )
    for name in filter(None, options.preimport.split(",")):
        __import__(name)
    program.set_dumpable(False)
    program.adopt_orphans()
    os.umask(0o022)
    path = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    os.environ.clear()
    os.environ.update({"PATH": path, "HOME": options.work, "LANG": "C.UTF-8"})
    sys.argv = ["main.py"]
    Runner(options.work, whole).run()
