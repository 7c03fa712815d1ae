"""A run with a fault, observed from the outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arl_audit.exactly_once import audit_ledger

from .crash import children_of, processes_of

_ROOT = Path(__file__).parents[1]
_STEPS = 24
_AT_VERSION = 5
"""The number of trained batches after which the fault occurs: not at a checkpoint."""
_DEADLINE_S = 300.0
_SMALL = (
    *("--env=math", "--agent=react", "--eval.num_tasks=0", "--logging.plot=false"),
    *("--logging.progress=plain", "--rollout.groups_per_batch=2", "--rollout.group_size=4"),
    *("--trainer.checkpoint_every=3", "--engine.num_servers=2"),
)
_ALARM = re.compile(
    r"is out of service|(the trainer|rollout-.|sandbox slot .+) is lost|"
    r"the verifier pool starts again|a verifier worker .* is replaced|the fork server .* is frozen|"
    r"the fork server .* has ended|has sent no token for"
)
_STEPS_WITHOUT_END = 100_000

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and the expected reaction of the run."""

    inject: Callable[[FaultyRun], float | None]
    """A function that causes the fault; it returns its time (CLOCK_MONOTONIC), if it is not
    immediate."""
    sign: str = ""
    """A pattern of the line with which the run reports that it noticed; empty: it only ends."""
    flags: Sequence[str] = ()
    ends: bool = False
    """Whether the run stops with the cause, and is resumed."""
    reported: bool = False
    """Whether the process that notices the fault writes the time into a file `found`, because the
    run does not report it, or not at once, such as a call of the environment that its deadline
    ends."""
    always_paid: bool = False
    """Whether every episode of this run is right: a lower reward is then wrong."""
    stops: bool = False
    """Whether nothing happens for the given time, after which the run is interrupted."""
    on_ray: bool = False
    """Whether it needs a Ray cluster whose nodes can be cut off (see `_ray_faulty`)."""

    @property
    def is_noticed(self) -> bool:
        """Return whether the run has to notice it: a part that is only slow must not count as
        lost."""
        return bool(self.sign) or self.ends or self.reported


class FaultyRun:
    """A run with one fault."""

    steps = _STEPS

    def __init__(self, folder: Path, fault: Fault) -> None:
        self.folder, self.fault = folder, fault
        folder.parent.mkdir(exist_ok=True)
        self._lines: list[tuple[float, str]] = []
        """The lines of the run's stderr, each with its time (CLOCK_MONOTONIC)."""
        self._out = b""
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self.helpers: list[subprocess.Popen[bytes]] = []

    def measure(self) -> Row:
        """Start the run, break it, watch it, let it finish, and judge the result.

        Raises:
            RuntimeError: the run ended otherwise than expected.
            TimeoutError: it did not get far enough in time.
        """
        fault = self.fault
        steps = _STEPS_WITHOUT_END if fault.stops else self.steps
        flags = [*_SMALL, f"--steps={steps}", *fault.flags, f"--run={self.folder}"]
        self._launch(["train", "--json", *flags])
        self.wait(lambda: self.version() >= _AT_VERSION, "the first batches")
        if fault.stops:
            return self._uneventful()
        roles = ("engine", "trainer", "rollout")
        members = [pid for role in roles for pid in self.processes(role)]
        begun = time.monotonic()
        at = fault.inject(self) or begun
        detected_s = self._noticed(begun, members) - at if fault.is_noticed else None
        before = self.version()
        if fault.ends:
            assert self._process is not None
            self._process.wait(_DEADLINE_S)
            at_resume = time.monotonic()
            self._launch(["train", "--json", "--resume", str(self.folder)])
        self.wait(lambda: self.version() > before, "a new batch")
        if fault.sign and "engine" in fault.sign:
            self.wait(lambda: self._line_s("serves again", since=begun) is not None, "the engine")
        if fault.sign and "rollout" in fault.sign:
            again = r"rollout-\d#1 plays"
            self.wait(lambda: self._line_s(again, since=begun) is not None, "the worker")
        full_s = time.monotonic() - (at_resume if fault.ends else at)
        return (
            self.finished()
            | self._audited(begun)
            | {
                "detected_s": _rounded(detected_s),
                "full_speed_s": _rounded(full_s),
                "resumed": fault.ends,
            }
        )

    def _uneventful(self) -> Row:
        """Wait until `inject` returns, and end the run."""
        begun = time.monotonic()
        self.fault.inject(self)
        watched_s = time.monotonic() - begun
        self.interrupt()
        return unmeasured() | self._audited(0.0) | {"watched_s": _rounded(watched_s)}

    def close(self) -> None:
        """End all processes that are left."""
        for process in filter(None, [*self.helpers, self._process]):
            if process.poll() is None:
                process.kill()
            process.wait(10)

    # ------------------------------------------------------------------ of the run
    @property
    def pid(self) -> int:
        """Return the process id of the controller."""
        assert self._process is not None
        return self._process.pid

    def processes(self, command: str) -> list[int]:
        """Return the pids of its processes that run `arl COMMAND`."""
        return children_of(self.pid, command)

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command line that runs `words` on the controller's machine."""
        return [*words]

    def hosts(self, words: str) -> list[int]:
        """Return the pids of its own children whose command line has `words`."""
        return [child for child, line in processes_of(self.pid) if words in line]

    def child(self, command: str) -> int:
        """Return the pid of the last of its processes that run `arl COMMAND`."""
        end = time.monotonic() + _DEADLINE_S
        while not (found := sorted(self.processes(command))):
            if time.monotonic() > end or self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"no {command} to break")
            time.sleep(0.05)
        return found[-1]

    def version(self) -> int:
        """Return the last published version, from the log."""
        with contextlib.suppress(sqlite3.Error):
            return self._ask("SELECT max(version) FROM versions")[0][0] or 0
        return 0

    def _launch(self, words: Sequence[str]) -> None:
        path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            self.command([sys.executable, "-m", "agentgym_rl", *words]),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "ARL_FAULT_DIR": str(self.folder.parent)},
        )
        self._reader = threading.Thread(target=self._read, args=[self._process], daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._lines.append((time.monotonic(), line.decode(errors="replace").rstrip()))

    def _line_s(self, pattern: str, *, since: float) -> float | None:
        """Return the time of the run's first line after `since` that matches `pattern`."""
        found = (at for at, line in list(self._lines) if at >= since and re.search(pattern, line))
        return next(found, None)

    def _noticed(self, begun: float, members: Sequence[int]) -> float:
        """Return the time at which the run noticed a fault that began at `begun`; `members` are the
        processes that it had."""
        if self.fault.reported:
            found = self.folder.parent / "found"
            self.wait(found.exists, "somebody who notices")
            return float(found.read_text())
        if self.fault.ends:
            assert self._process is not None
            self._process.wait(_DEADLINE_S)
            for pid in members:
                gone(pid)
            said = self._line_s(self.fault.sign, since=begun) if self.fault.sign else None
            return time.monotonic() if said is None else said
        self.wait(lambda: self._line_s(self.fault.sign, since=begun) is not None, self.fault.sign)
        said = self._line_s(self.fault.sign, since=begun)
        assert said is not None
        return said

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds; `what` names it for errors.

        Raises:
            RuntimeError: the run ended before.
            TimeoutError: it does not hold after five minutes.
        """
        assert self._process is not None
        end = time.monotonic() + _DEADLINE_S
        while not condition():
            if self._process.poll() is not None and not condition():
                raise RuntimeError(f"the run ended before {what}: {self._tail()}")
            if time.monotonic() > end:
                raise TimeoutError(f"no {what} after {_DEADLINE_S:g} s: {self._tail()}")
            time.sleep(0.02)

    def interrupt(self) -> None:
        """Interrupt the run, and wait for its end.

        Raises:
            RuntimeError: it has ended by itself.
        """
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the run ended by itself: {self._tail()}")
        self._process.send_signal(signal.SIGINT)
        self._process.wait(_DEADLINE_S)

    def finished(self) -> Row:
        """Wait for the end of the run; return the JSON object that it prints."""
        assert self._process is not None
        assert self._process.stdout is not None
        out = self._process.stdout.read()  # one object, at the end
        if self._process.wait(_DEADLINE_S):
            raise RuntimeError(f"the run failed: {self._tail()}")
        result = json.loads(out)
        engines = result["engines"]
        return {
            "tokens_sampled_again": engines["discarded_tokens"],
            "failovers": engines["failovers"],
            "restarts": engines["restarts"]
            + result["trainer_restarts"]
            + result["worker_restarts"],
        }

    def _audited(self, at: float) -> Row:
        """Return the audit of the run's folder, and the run's messages since the fault."""
        report = audit_ledger(self.folder)
        alarms = [line for said, line in self._lines if said >= at and _ALARM.search(line)]
        expected = self.fault.is_noticed and not self.fault.reported
        poisoned = _POISONED + ("OR t.reward < 1)" if self.fault.always_paid else ")")
        return {
            "faults": report["faults"],
            "batches": self.version(),
            "batches_trained_again": report["batches_trained_again"],
            "of_these_bit_for_bit": report["of_these_bit_for_bit"],
            "groups_lost": self._ask(_LOST)[0][0],
            "duplicated": sum("trained twice" in fault for fault in report["faults"]),
            "poisoned_rewards": self._ask(poisoned)[0][0],
            "false_alarms": 0 if expected else len(alarms),
        }

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        file = self.folder / "episodes.db"
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as log:
            return log.execute(query).fetchall()

    def _tail(self) -> str:
        return "\n".join(line for _, line in self._lines[-20:])


_LOST = "SELECT count(*) FROM groups WHERE status = 'dropped' AND cause != 'stale'"
_POISONED = """
    SELECT count(*) FROM trajectories t JOIN groups g USING (group_id)
    WHERE g.status IN ('leased', 'consumed') AND (t.outcome NOT IN ('completed', 'truncated') """


def unmeasured() -> Row:
    """Return the row of a run without a result."""
    keys = ("batches_trained_again", "of_these_bit_for_bit", "tokens_sampled_again")
    more = ("groups_lost", "duplicated", "poisoned_rewards", "false_alarms")
    return {
        "detected_s": None,
        "full_speed_s": None,
        "faults": [],
        **dict.fromkeys((*keys, *more), 0),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(max(0.0, seconds), 3)


def gone(pid: int) -> float:
    """Wait for the end of a process; return its time."""
    end = time.monotonic() + _DEADLINE_S
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > end:
            raise TimeoutError(f"process {pid} is still there after {_DEADLINE_S:g} s")
        time.sleep(0.005)
    return time.monotonic()
