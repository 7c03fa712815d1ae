"""The program that becomes an SGLang server. It runs in the interpreter that has SGLang, started by
its path, and imports nothing of this package.

SGLang spawns its processes, and a spawned process runs this file first. So each of them makes the
kernel kill it with its parent before it imports anything large; SGLang's own call for that comes
only afterwards.
"""

# sglang is not in the environment that checks types.
# pyright: reportMissingImports=false

from __future__ import annotations

import ctypes
import os
import signal
import sys

DIE_WITH_PARENT = "ARL_DIE_WITH_PARENT"
"""The environment variable that, at "1", makes the server's child processes die with it."""
_SERVER = "ARL_SGLANG_SERVER"
"""The environment variable with the process id of the server."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def _die_with_parent() -> None:
    """Make the kernel kill this process when its parent dies, for any reason.

    This applies only to children of the server: the server itself belongs to the process that
    started it.
    """
    if os.environ.get(DIE_WITH_PARENT) != "1":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.stderr.write(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}\n")
    # A parent that died before the call above sends no signal any more.
    if not _is_alive(os.environ.get(_SERVER, "")):
        os.kill(os.getpid(), signal.SIGKILL)


def _is_alive(pid: str) -> bool:
    """Return whether the process runs; one that was killed may not be reaped yet."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def main() -> None:
    """Serve with the flags of `python -m sglang.launch_server`, until the server ends."""
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    os.environ[_SERVER] = str(os.getpid())
    load_plugins()
    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # in a spawned process
    _die_with_parent()
