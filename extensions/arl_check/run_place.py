"""The check of the file system on which a command writes a run's log."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path

_WRITERS = frozenset({"train", "eval", "serve"})
"""The commands that write an `episodes.db`."""
_NETWORK_SYSTEMS = {
    **{0x6969: "NFS", 0x0BD00BD0: "Lustre", 0x47504653: "GPFS", 0x19830326: "BeeGFS"},
    **{0x00C36400: "CephFS", 0x517B: "SMB", 0xFF534D42: "CIFS", 0xFE534D42: "SMB"},
    **{0x5346414F: "AFS", 0xAAD7AAEA: "PanFS"},
}
"""The file systems of several hosts, by their type (man 2 statfs, linux/magic.h)."""


def check_folder(args: Namespace) -> None:
    """Print a warning if the folder that a command will write is on a network file system."""
    if args.command not in _WRITERS or getattr(args, "q", False):
        return
    named = (getattr(args, name, None) for name in ("resume", "run", "out"))
    folder = Path(next((str(it) for it in named if it), "runs")).absolute()
    if system := network_system(folder):
        print(
            f"arl: {folder} is on {system}, where the write-ahead log of episodes.db (SQLite) is "
            "safe for the programs of one host only: until the run has ended, read it (arl "
            "inspect, runs, ledger) on this host, or write it to a local disk (--run FOLDER). The "
            "mount needs locks: for Lustre -o flock, for NFS a lock service",
            file=sys.stderr,
        )


def network_system(folder: Path) -> str:
    """Return the kind of network file system that holds a folder, or will; "" if it is none."""
    import ctypes  # every command imports this module

    there = next(it for it in (folder, *folder.parents) if it.exists())
    found = (ctypes.c_ulong * 32)()  # the type is the first word of Linux's `struct statfs`
    failed = ctypes.CDLL(None).statfs(os.fsencode(there), found)
    return "" if failed else _NETWORK_SYSTEMS.get(found[0] & 0xFFFFFFFF, "")
