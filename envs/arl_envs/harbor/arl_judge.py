"""The parts that the verifiers in /tests share, a file of its own there: a judge whose memory no
program under test reads, the end of the processes that those leave, and the reward file.

A judge reads a nonce from standard input before it starts any program under test, and writes it
into reward.json: a file that a program under test writes has not the nonce, and is not paid.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

REAP_S = 5.0
DUMPABLE, SUBREAPER = 4, 36
"""The options of prctl(2): whether others of the user may read the memory; who adopts orphans."""
WAIT_ALL = 0x40000000
"""The flag __WALL of wait(2): children of any kind of clone(2)."""
MOST_PID = 1 << 22
"""The bound of process numbers in every Linux."""
LIBC = ctypes.CDLL(None, use_errno=True)


def harden() -> None:
    """Hide this process's memory from others of its user, and adopt all orphans below it.

    Raises:
        OSError: the kernel refuses.
    """
    control(DUMPABLE, 0)
    control(SUBREAPER, 1)


def control(option: int, value: int) -> None:
    """Call prctl(2) on this process.

    Raises:
        OSError: the kernel refuses.
    """
    if LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def taken_nonce() -> str:
    """Return the line of standard input, and close that: "" if there is none, as in Harbor's own
    runner."""
    nonce = sys.stdin.buffer.readline(4096).decode().strip()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return nonce


# ------------------------------------------------------------------ processes
def reap(first: int, patience_s: float = REAP_S) -> bool:
    """Kill all descendants, and return whether none is left: orphans become children in turn.

    They are found without /proc, which may hide the forks of a process whose memory is closed. The
    group of the eldest is killed at once: a process that forks at every turn would outrun a search.

    Args:
        first: The process number of the eldest descendant.
    """
    end, missed = time.monotonic() + patience_s, 0
    with contextlib.suppress(OSError):  # it leads no group, or is gone
        os.killpg(first, signal.SIGKILL)
    for turn in itertools.count():
        try:
            while os.waitpid(-1, os.WNOHANG | WAIT_ALL)[0]:
                pass
        except ChildProcessError:
            return True
        if time.monotonic() > end:
            break
        if turn > 2:  # most children are just about to end
            found = False
            for pid in born_since(first if missed < 2 else 2):
                if is_child(pid):
                    found = True
                    with contextlib.suppress(OSError):  # gone, or a stranger: the next turn tells
                        os.kill(pid, signal.SIGKILL)
            missed = 0 if found else missed + 1
        time.sleep(0.0005)
    return False


def born_since(first: int) -> Iterator[int]:
    """Yield the process numbers that were given since `first` was: the kernel counts up, and
    begins anew at the bound."""
    try:
        last = os.fork()
    except OSError:  # too many processes
        last = MOST_PID
    else:
        if last == 0:
            os._exit(0)
        os.waitpid(last, 0)
    if last < first:
        yield from range(first, MOST_PID)
        first = 2
    yield from range(first, last)


def is_child(pid: int) -> bool:
    """Return whether a process is a child of this one, ended or not."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT | WAIT_ALL)
    except OSError:
        return False
    return True


def heard(end: int, program: subprocess.Popen[bytes], most: int) -> Iterator[bytes]:
    """Yield what comes through a pipe until the program has ended: what it left behind may hold the
    pipe open, and write on. After its end no more than `most` bytes are yielded."""
    left = most
    while left > 0:
        over = program.poll() is not None  # before the last look
        if select.select([end], [], [], 0 if over else 0.05)[0]:
            more = os.read(end, 1 << 16)
            if not more:  # every writer has closed it
                program.wait()
                return
            yield more
            left -= len(more) if over else 0
        elif over:
            return


# ------------------------------------------------------------------ the reward
def clear_reward(logs: str) -> None:
    """Make the folder of the reward, without any reward that the agent left there."""
    if os.path.islink(logs):
        os.unlink(logs)
    os.makedirs(logs, exist_ok=True)
    os.chmod(logs, 0o755)
    for name in ("reward.json", "reward.txt"):
        remove(os.path.join(logs, name))


def remove(path: str) -> None:
    """Remove a file, a link or a folder, if there is one."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def write_reward(logs: str, rewards: Mapping[str, float], nonce: str) -> None:
    """Write reward.json in place of whatever the agent left there, with the nonce if there is
    one: its other values are numbers, as Harbor's own runner expects."""
    clear_reward(logs)
    path = os.path.join(logs, "reward.json")
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with open(file, "w", encoding="utf-8") as opened:
        said = {"nonce": nonce} if nonce else {}
        json.dump({**rewards, **said}, opened)
