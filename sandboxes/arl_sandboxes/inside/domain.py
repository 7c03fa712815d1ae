"""A Landlock domain for each program, if the kernel supports it.

A program in the domain cannot read or write the memory of a process outside (Linux 5.19), nor send
it a signal (6.12), though all have the same user. Only the work folder and the scratch folders can
be written, so not the files in /proc that the kernel lets every process write (oom_score_adj).
"""

from __future__ import annotations

import contextlib
import os

from arl_isolation import locks


def enter(writable: tuple) -> None:
    """Confine the caller and its children, if the kernel can. Needs no_new_privs."""
    try:
        version = locks.landlock_version()
    except OSError:
        return
    if version < 2:
        return
    scopes = locks.SCOPE_SIGNAL if version >= 6 else 0
    ruleset = locks.ruleset(locks.WRITE_FILE | locks.REFER, scopes=scopes)
    locks.allow(ruleset, "/", locks.REFER)  # files may be moved from one folder to another
    for path in writable:
        with contextlib.suppress(FileNotFoundError):
            locks.allow(ruleset, path, locks.WRITE_FILE)
    locks.enter_domain(ruleset)
    os.close(ruleset)
