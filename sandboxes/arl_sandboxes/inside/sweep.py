"""A search for processes, and their killing."""

from __future__ import annotations

import contextlib
import os
import signal


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def strays(spared: set) -> set:
    """Return the living descendants of this process that do not belong to `spared` processes.

    A process belongs to a spared one if it descends from it, or is in its kernel session.
    """
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] not in (b"Z", b"X"):
                table[int(name)] = int(fields[1]), int(fields[3])
    me = os.getpid()
    table.pop(me, None)
    found = set()
    for pid, (_, sid) in table.items():
        above = pid
        for _ in range(len(table)):
            if above not in table or above in spared:
                break
            above = table[above][0]
        if above == me and sid not in spared:
            found.add(pid)
    return found


def is_only_process() -> bool:
    """Return True if no other process runs as this user."""
    mine = f"Uid:\t{os.getuid()}\t"
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/status") as file:
                    if mine in file.read():
                        return False
            except OSError:
                continue
    return True
