"""The faults of a run, by name."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ._faulty import Fault, FaultyRun, gone

_LOAD_S = float(os.environ.get("ARL_BENCH_LOAD_S", "600"))

Injection = Callable[[FaultyRun], "float | None"]


def send(command: str, number: signal.Signals) -> Injection:
    return lambda run: os.kill(run.child(command), number)


def stutter(command: str) -> Injection:
    """Stop the process most of the time for ten seconds, never for long at once."""

    def inject(run: FaultyRun) -> None:
        pid = run.child(command)
        with contextlib.suppress(ProcessLookupError):  # a false alarm, which the run's log has
            for _ in range(10):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.8)
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.2)

    return inject


def hosts(words: str, number: signal.Signals, *, below: int = 0) -> Injection:
    """Send a signal to all of the run's own children of this name at once, or to their first
    children."""

    def inject(run: FaultyRun) -> None:
        for pid in _hosts(run, words, below):
            os.kill(pid, number)

    return inject


def stutter_hosts(words: str, *, below: int = 0) -> Injection:
    """Stop the process most of the time for ten seconds, never for long at once."""

    def inject(run: FaultyRun) -> None:
        for _ in range(10):
            pids = _hosts(run, words, below)
            for number, seconds in ((signal.SIGSTOP, 0.8), (signal.SIGCONT, 0.2)):
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):  # it was a worker's last call
                        os.kill(pid, number)
                time.sleep(seconds)

    return inject


def _hosts(run: FaultyRun, words: str, below: int) -> list[int]:
    """Return the children of the run of this name, or their first descendants so many generations
    below."""
    found = run.hosts(words)
    for _ in range(below):
        children = [Path(f"/proc/{pid}/task/{pid}/children").read_text().split() for pid in found]
        found = [int(pids[0]) for pids in children if pids]
    return found


def _frozen_and_killed(run: FaultyRun) -> None:
    """Stop a fork server, and kill its child meanwhile."""
    hosts(_FORKS, signal.SIGSTOP)(run)
    os.kill(run.child("engine"), signal.SIGKILL)


def logged(inject: Injection, logs: str, words: str) -> Injection:
    """Return the same fault, which a process of the run reports by `words` in one of its `logs` (a
    pattern of files); see `Fault.reported`."""

    def both(run: FaultyRun) -> float:
        at = {file: file.stat().st_size for file in (run.folder / "logs").glob(logs)}
        begun = time.monotonic()
        inject(run)
        run.wait(lambda: any(words in _since(file, at.get(file, 0)) for file in at), words)
        (run.folder.parent / "found").write_text(repr(time.monotonic()))
        return begun

    return both


def _since(file: Path, start: int) -> str:
    return file.read_bytes()[start:].decode(errors="replace")


def freeze_controller(run: FaultyRun) -> None:
    """Stop the controller for ten seconds, which is not a failure of any part."""
    os.kill(run.pid, signal.SIGSTOP)
    goes_on = threading.Timer(10.0, os.kill, (run.pid, signal.SIGCONT))
    goes_on.start()


def stutter_controller(run: FaultyRun) -> None:
    for _ in range(10):
        os.kill(run.pid, signal.SIGSTOP)
        time.sleep(0.8)
        os.kill(run.pid, signal.SIGCONT)
        time.sleep(0.2)


def _request_stop(run: FaultyRun) -> None:
    """Make the next program of the model stop itself; its time limit ends it."""
    folder = run.folder.parent
    (folder / "hang").touch()
    run.wait(lambda: (folder / "found").exists(), "a program to stop itself")


def _load(seconds: float) -> Injection:
    """Run eight busy loops on the machine."""
    code = f"import time; end = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"

    def inject(run: FaultyRun) -> None:
        for _ in range(8):
            run.helpers.append(subprocess.Popen([sys.executable, "-S", "-c", code]))
        for helper in run.helpers:
            helper.wait()

    return inject


def _limit(pid: int, kind: int, size: int) -> None:
    resource.prlimit(pid, kind, (size, resource.RLIM_INFINITY))


def no_memory(run: FaultyRun) -> float:
    """Limit the trainer's memory to its present use; the fault occurs when it needs more."""
    pid = run.child("trainer")
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    _limit(pid, resource.RLIMIT_AS, pages * resource.getpagesize())
    return gone(pid)


def no_disk(run: FaultyRun) -> float:
    """Forbid the trainer to write large files; the fault occurs when it writes one."""
    pid = run.child("trainer")
    _limit(pid, resource.RLIMIT_FSIZE, 300_000)
    return gone(pid)


def no_log(run: FaultyRun) -> None:
    """Forbid the controller to write large files, such as its log."""
    _limit(run.pid, resource.RLIMIT_FSIZE, 100_000)


def hang(run: FaultyRun) -> float:
    """Make the next call of the environment hang; the fault occurs at that call."""
    folder = run.folder.parent
    (folder / "hang").touch()
    run.wait(lambda: (folder / "hung").exists(), "a call to hang")
    return float((folder / "hung").read_text())


_ENGINE, TRAINER = "engine-[01] is out of service", "the trainer is lost"
_WORKER, _WORKERS = "rollout-[01] is lost", ("--rollout.workers=2", "--steps=60")
LOG = r"episodes.db cannot be written"
HANG = ("--rollout.tool_timeout_s=3",)
SLOT_SERVER = "local/inside/namespace_server.py"
SLOT = r"sandbox slot \d+ is lost"
PROGRAMS = ("--env=code", "--agent=benchmarks._fault_envs:Submits")
_POOL = "arl_verifier.inside.fork_server"
_LONG = "--steps=150"
"""A number of batches larger than are trained while a part is slow."""
_JUDGED = ("--env=benchmarks._fault_envs:Judged", "--agent=single_turn")
_STAY = (*_JUDGED, "--env.options.fresh=false")
"""The keys for verifier workers that serve many calls."""
_ANEW = "the verifier pool starts again"
_JUDGE = "a verifier worker .* is replaced"
_FORKS = "agentgym_rl.cluster.fork_server"
_FORKS_END, _FORKS_STOP = "the fork server .* has ended", "the fork server .* is frozen"
_MAIN_JOB = (
    *("--trainer.num_ranks=2", "--rollout.groups_per_batch=8", "--rollout.group_size=8"),
    "--trainer.checkpoint_every=20",
)
NONE = "none"
"""The fault that is measured only by name: nothing happens, on a machine under load."""
FAULTS: Mapping[str, Fault] = {
    "engine killed": Fault(send("engine", signal.SIGKILL), _ENGINE),
    "engine frozen": Fault(send("engine", signal.SIGSTOP), _ENGINE),
    "engine slow": Fault(stutter("engine")),
    "worker killed": Fault(send("rollout", signal.SIGKILL), _WORKER, flags=_WORKERS),
    "worker frozen": Fault(send("rollout", signal.SIGSTOP), _WORKER, flags=_WORKERS),
    "worker slow": Fault(stutter("rollout"), flags=_WORKERS),
    "trainer killed": Fault(send("trainer", signal.SIGKILL), TRAINER),
    "trainer frozen": Fault(send("trainer", signal.SIGSTOP), TRAINER),
    "trainer told to end": Fault(send("trainer", signal.SIGTERM), TRAINER),
    "trainer slow": Fault(stutter("trainer")),
    "trainer without memory": Fault(no_memory, TRAINER),
    "one of two ranks killed": Fault(
        send("trainer", signal.SIGKILL), TRAINER, flags=("--trainer.num_ranks=2",)
    ),
    "trainer without disk": Fault(no_disk, TRAINER, ends=True),
    "log without disk": Fault(no_log, LOG, ends=True),
    "controller killed": Fault(lambda run: os.kill(run.pid, signal.SIGKILL), ends=True),
    "controller of workers killed": Fault(
        lambda run: os.kill(run.pid, signal.SIGKILL), ends=True, flags=_WORKERS
    ),
    "controller frozen": Fault(
        logged(freeze_controller, "trainer-0.log", "which started this one, is frozen"),
        reported=True,
    ),
    "controller slow": Fault(stutter_controller),
    "sandbox host killed": Fault(
        hosts(SLOT_SERVER, signal.SIGKILL, below=1), SLOT, flags=PROGRAMS, always_paid=True
    ),
    "sandbox host frozen": Fault(
        hosts(SLOT_SERVER, signal.SIGSTOP, below=1), SLOT, flags=PROGRAMS, always_paid=True
    ),
    "sandbox host slow": Fault(
        stutter_hosts(SLOT_SERVER, below=1), flags=PROGRAMS, always_paid=True
    ),
    "program stops itself": Fault(
        _request_stop,
        flags=(*PROGRAMS, *_WORKERS, "--sandbox.options.limits.wall_s=4"),
        always_paid=True,
    ),
    "verifier host killed": Fault(
        hosts(_POOL, signal.SIGKILL), _ANEW, flags=_JUDGED, always_paid=True
    ),
    "verifier host frozen": Fault(
        hosts(_POOL, signal.SIGSTOP), _ANEW, flags=_JUDGED, always_paid=True
    ),
    "verifier host slow": Fault(stutter_hosts(_POOL), flags=(*_JUDGED, _LONG), always_paid=True),
    "verifier worker killed": Fault(
        hosts(_POOL, signal.SIGKILL, below=1), flags=_STAY, always_paid=True
    ),
    "verifier worker frozen": Fault(
        hosts(_POOL, signal.SIGSTOP, below=1), _JUDGE, flags=_STAY, always_paid=True
    ),
    "verifier worker slow": Fault(
        stutter_hosts(_POOL, below=1), flags=(*_STAY, _LONG), always_paid=True
    ),
    "sandbox fork server killed": Fault(
        hosts(SLOT_SERVER, signal.SIGKILL), SLOT, flags=PROGRAMS, always_paid=True
    ),
    "sandbox fork server frozen": Fault(
        hosts(SLOT_SERVER, signal.SIGSTOP), SLOT, flags=PROGRAMS, always_paid=True
    ),
    "sandbox fork server slow": Fault(stutter_hosts(SLOT_SERVER), flags=PROGRAMS, always_paid=True),
    "fork server killed": Fault(hosts(_FORKS, signal.SIGKILL), _FORKS_END),
    "fork server frozen": Fault(hosts(_FORKS, signal.SIGSTOP), _FORKS_STOP),
    "fork server frozen as its engine dies": Fault(_frozen_and_killed, _FORKS_STOP),
    "fork server slow": Fault(stutter_hosts(_FORKS), flags=(_LONG,)),
    "machine loaded": Fault(_load(20.0), flags=(_LONG,)),
    "tool never returns": Fault(
        hang, flags=("--env=benchmarks._fault_envs:HangingTool", *HANG), reported=True
    ),
    "environment never returns": Fault(
        hang, flags=("--env=benchmarks._fault_envs:HangingEnv", *HANG), reported=True
    ),
    NONE: Fault(_load(_LOAD_S), flags=_MAIN_JOB, stops=True),
}
