"""A small process that watches `arl`: it reports code that blocks the event loop, and ends `arl` if
it cannot end itself.

Environments, agents and chat templates run on the event loop of `arl`. Code that never yields
stops everything, and code that computes in C even keeps Python's signal handlers from running. So
another process checks whether the loop still runs:

    arl ─ a counter that the loop increments, and the received signals ─► guard
        ◄─ SIGUSR2: the stack of each thread (faulthandler needs no interpreter for it), SIGKILL ─

This file has both sides: `Guard` runs in `arl`, and `main` in the guard process, which imports
nothing else of this package.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

BEAT_S = 0.1
"""The interval, in seconds, at which the loop increments its counter."""
LOOK_S = 0.25
NAMED_S = 5.0
"""The blocking time, in seconds, after which an environment, an agent or a template is reported."""
NAMED_ANYWAY_S = 30.0
"""The blocking time, in seconds, after which any other code is reported: some work of this package,
like reading a large model, takes a while."""
END_S = 8.0
"""The time, in seconds, that an interrupted process with a blocked loop has to end by itself."""
LEAST_HANG_S = 60.0
_MOST_LOOK_S = 1.0
"""The longest time, in seconds, that counts between two checks, of a paused machine."""
_TRACE_S = 2.0
_RUNS, _ENDED = 1, 2
_STATE = struct.Struct("QB")
"""The number of beats, and the phase."""


class _Order(NamedTuple):
    """The arguments of the guard process."""

    pid: int
    thread: int
    """The identity of the main thread."""
    task: int
    """The number that the kernel has for it."""
    state: int
    """The file descriptor of `_STATE`."""
    trace: int
    """The file descriptor to which `faulthandler` writes."""
    signals: int
    """The file descriptor to which the kernel writes signals."""
    answer: int
    """The file descriptor for the JSON object of `--json`; -1: there is none."""
    hang_s: float
    """The blocking time, in seconds, by an environment, agent or template after which the process
    is ended."""


class Guard:
    """The guard of this process, while the context is open; see the module.

    Args:
        hang_s: The time for which the loop may be blocked (at least 60 s) before the process ends.
        answer: The file descriptor on which a JSON object is expected, or None.
    """

    def __init__(self, *, hang_s: float, answer: int | None = None) -> None:
        self._hang_s = max(hang_s, LEAST_HANG_S)
        self._answer = answer
        self._beats = 0
        self._phase = 0

    def __enter__(self) -> Guard:
        import faulthandler
        import socket
        import subprocess
        import tempfile
        import threading

        self._file, self._trace = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self._file.truncate(_STATE.size)
        self._state = mmap.mmap(self._file.fileno(), _STATE.size)
        self.wakeup, self._signals = socket.socketpair()
        self.wakeup.setblocking(False)
        faulthandler.register(signal.SIGUSR2, file=self._trace, all_threads=True)
        order = _Order(
            os.getpid(),
            threading.get_ident(),
            threading.get_native_id(),
            self._file.fileno(),
            self._trace.fileno(),
            self._signals.fileno(),
            -1 if self._answer is None else self._answer,
            self._hang_s,
        )
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, json.dumps(order._asdict())],
            pass_fds=[
                fd for fd in (order.state, order.trace, order.signals, order.answer) if fd > 0
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        import faulthandler

        self._write(_ENDED)
        self._process.kill()
        self._process.wait()
        faulthandler.unregister(signal.SIGUSR2)
        self.wakeup.close()
        self._signals.close()
        self._state.close()
        self._file.close()
        self._trace.close()

    def beat(self) -> None:
        """Show that the loop runs."""
        self._beats += 1
        self._write(_RUNS)

    def _write(self, phase: int) -> None:
        self._state[:] = _STATE.pack(self._beats, phase)


# ------------------------------------------------------------------ the guard's own side
Frame = tuple[str, int, str]
"""The file, line and function of a stack frame."""
_ENV_HINT = (
    "Put waiting code behind `await` (asyncio.sleep, asyncio.to_thread, an async client), and "
    'computing code into a SyncEnv with executor = "thread", or "process" if it may hang'
)
_AGENT_HINT = (
    "Put waiting code behind `await` (asyncio.sleep, asyncio.to_thread, an async client); an "
    "agent that blocks can be a separate program (arl list: command)"
)
_TEMPLATE_HINT = "Give the model's folder a chat template whose loops end"
HOLDERS: tuple[tuple[str, str, str, str], ...] = (
    (r"agentgym_rl/gateway/template/template\.py$", r"render", "the chat template", _TEMPLATE_HINT),
    (r"agentgym_rl/rollout/episode\.py$", r"start|step|close|play", "the environment", _ENV_HINT),
    (r"agentgym_rl/rollout/episode\.py$", r"_run|_play", "the agent", _AGENT_HINT),
    (
        r"/(gym/sync_env|gym/tool_env/calls|gym/wrappers/timeout|gym/specs|arl_check/support)\.py$",
        r".*",
        *("the environment", _ENV_HINT),
    ),
    (
        r"agentgym_rl/(gym/registry|runtime/imports)\.py$",
        r".*",
        "the module of an environment or agent",
        *("Importing a module, and making what is in it, must not wait",),
    ),
)
"""The functions of this package that call foreign code: a pattern of the file and of the function,
the name of the foreign part, and a remedy."""
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_THREAD = re.compile(r"^(?:Current t|T)hread 0x([0-9a-f]+)")


def threads_of(dump: str) -> dict[int, list[Frame]]:
    """Parse the frames of each thread, innermost first, from the output of `faulthandler`."""
    found: dict[int, list[Frame]] = {}
    frames: list[Frame] = []
    for line in dump.splitlines():
        if thread := _THREAD.match(line):
            frames = found[int(thread[1], 16)] = []
        elif frame := _FRAME.match(line):
            frames.append((frame[1], int(frame[2]), frame[3]))
    return found


def holder_of(frames: list[Frame]) -> tuple[str, str] | None:
    """Return the foreign code in these frames with its location, and a remedy; None: there is
    none."""
    for number, (file, _, name) in enumerate(frames):
        for of_file, of_name, who, hint in HOLDERS:
            if number and re.search(of_file, file) and re.fullmatch(of_name, name):
                return f"{who}, {place(frames[:number])},", hint
    return None


def place(frames: list[Frame]) -> str:
    """Return the innermost frame outside of Python's library and installed packages."""
    theirs = [f for f in frames if not re.search(r"site-packages|/lib/python3|^<frozen", f[0])]
    file, line, name = (theirs or frames)[0]
    return f"{file}, line {line}, in {name}"


def queued_s(pid: int, task: int) -> float:
    """Return the time, in seconds, for which a thread could run, but had no CPU, since others used
    them all; 0 if the kernel does not count it."""
    try:
        with open(f"/proc/{pid}/task/{task}/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


class Stillness:
    """The time for which a thread has blocked its loop, without the time that it had no CPU.

    Args:
        queued_s: A function that returns the time, in seconds, that the thread had no CPU.
    """

    def __init__(self, queued_s: Callable[[], float]) -> None:
        self._queued_s = queued_s
        self._now_s = self._queued = self._time_s = 0.0
        self._due_s = NAMED_S

    def look(self, now_s: float, *, still: bool) -> float:
        """Count the time since the last check if the loop has been still since; return the sum."""
        queued = self._queued_s()
        if still:
            self._time_s += min(now_s - self._now_s, _MOST_LOOK_S) - (queued - self._queued)
        else:
            self._time_s, self._due_s = 0.0, NAMED_S
        self._now_s, self._queued = now_s, queued
        return self._time_s

    def is_due(self) -> bool:
        """Return whether the time has passed another multiple of `NAMED_S`."""
        passed = self._time_s >= self._due_s
        self._due_s += NAMED_S * passed
        return passed


class _Watch:
    """The loop of the guard process."""

    def __init__(self, order: _Order) -> None:
        self._order = order
        self._time = Stillness(lambda: queued_s(order.pid, order.task))
        self._state = mmap.mmap(order.state, _STATE.size, prot=mmap.PROT_READ)
        self._beats = -1
        self._looks = self._still_looks = 0
        """The number of checks since the process was interrupted, and of those with an unchanged
        counter."""
        self._interrupted = False
        self._named: set[str] = set()
        self._ended = False
        """Whether this guard has ended the process, or has reported its end."""

    def run(self) -> None:
        """Watch until the process has ended."""
        while os.getppid() == self._order.pid:
            time.sleep(LOOK_S)
            self._read_signals()
            beats, phase = _STATE.unpack(self._state[:])
            counts = phase == _RUNS and not self._stopped()
            still, self._beats = counts and beats == self._beats, beats
            still_s = self._time.look(time.monotonic(), still=still)
            if not counts:
                continue
            if self._interrupted:
                self._looks += 1
                self._still_looks += still
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                self._act(still_s)
        self._part()

    def _read_signals(self) -> None:
        """Record whether the process was interrupted: the kernel writes each signal to a socket,
        even if the process cannot handle the signal."""
        while select.select([self._order.signals], [], [], 0)[0]:
            if not (numbers := os.read(self._order.signals, 64)):
                return
            if {signal.SIGINT, signal.SIGTERM} & set(numbers):
                self._interrupted = True

    def _stopped(self) -> bool:
        """Return whether the process is stopped or traced; then its loop does not count as
        blocked."""
        try:
            with open(f"/proc/{self._order.pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] in "Tt"
        except (OSError, IndexError):
            return False

    def _act(self, still_s: float) -> None:
        """Report the code that blocks the loop, and end the process if that is due."""
        late = self._looks * LOOK_S >= END_S and 2 * self._still_looks >= self._looks
        given_up = still_s >= self._order.hang_s
        if self._ended or not (late or given_up or self._time.is_due()):
            return
        who, hint, is_known = self._holder()
        if late:
            self._end(f"interrupted, and ended by force: {who} did not let it end. {hint}")
        elif given_up and is_known:
            self._end(
                f"given up: {who} has held the event loop for {still_s:.0f} s, so that nothing "
                f"else could run. {hint}"
            )
        elif who not in self._named and (is_known or still_s >= NAMED_ANYWAY_S):
            self._named.add(who)
            _report(
                f"{who} has held the event loop for {still_s:.0f} s: until it returns, no "
                f"episode, reply or deadline continues. {hint}"
            )

    def _holder(self) -> tuple[str, str, bool]:
        """Return the code that blocks the loop, a remedy, and whether it is known foreign code."""
        threads = threads_of(self._dump())
        main = threads.pop(self._order.thread, [])
        for frames in (main, *threads.values()):
            if found := holder_of(frames):
                return *found, True
        return (place(main) if main else "something in C"), "", False

    def _dump(self) -> str:
        before = os.fstat(self._order.trace).st_size
        os.kill(self._order.pid, signal.SIGUSR2)
        size, end = before, time.monotonic() + _TRACE_S
        while time.monotonic() < end:
            time.sleep(0.1)
            size, last = os.fstat(self._order.trace).st_size, size
            if size > before and size == last:
                break
        return os.pread(self._order.trace, size - before, before).decode(errors="replace")

    def _end(self, why: str) -> None:
        why = why.rstrip(". ")  # a hint may be empty
        self._owe_nothing("ArlError", why)  # before it ends, since readers read at its end
        _report(why)
        os.kill(self._order.pid, signal.SIGKILL)
        time.sleep(LOOK_S)

    def _part(self) -> None:
        """Report the end of a process that could not report it itself."""
        _, phase = _STATE.unpack(self._state[:])
        if phase != _RUNS:
            return
        self._read_signals()  # signals that arrived since the last check
        if self._interrupted:
            self._owe_nothing("KeyboardInterrupt", "interrupted")
        elif not self._ended:
            why = (
                "ended without a message: it was killed (by the kernel, where memory ran out), or "
                "something that it ran ended the process"
            )
            _report(why)
            self._owe_nothing("ArlError", why)

    def _owe_nothing(self, kind: str, message: str) -> None:
        """Write the JSON object of `--json`, if it is expected and has not been written yet."""
        if self._order.answer >= 0 and not self._ended:
            text = json.dumps({"error": {"type": kind, "message": message}})
            os.write(self._order.answer, f"{text}\n".encode())
        self._ended = True


def _report(text: str) -> None:
    os.write(2, f"arl: {text}\n".encode())


def main() -> None:
    """Guard the process that has started this one."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _Watch(_Order(**json.loads(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
