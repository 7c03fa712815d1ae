"""The plugin that vLLM loads in each of its processes when this package is installed in its
environment.

The plugin must be harmless to users who have both installed and use vLLM for something else.
"""

# vllm is not in the environment that checks types.
# pyright: reportMissingImports=false

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal

_log = logging.getLogger(__name__)

DIE_WITH_PARENT = "ARL_DIE_WITH_PARENT"
"""The environment variable that, at "1", makes a vLLM server's child processes die with it."""

SHM, GLOO = "arl-shm", "arl-gloo"
"""The names of the weight-transfer backends, for --weight-transfer-config."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def register() -> None:
    """Register the weight-transfer backends; may be called more than once. Never raises."""
    if os.environ.get(DIE_WITH_PARENT) == "1":
        _die_with_parent()
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as Factory
    except ImportError as error:  # a vLLM without weight transfer, which needs no backends
        _log.debug("no weight-transfer backends registered: %s", error)
        return
    home = f"{__package__}.transfer"
    for name, kind in ((SHM, "SharedMemoryTransfer"), (GLOO, "GlooTransfer")):
        try:
            Factory.register_engine(name, home, kind)
        except ValueError:
            _log.debug("weight-transfer backend %s is registered already", name)


def _die_with_parent() -> None:
    """Make the kernel kill this process when its parent dies, for any reason.

    This applies only to children of a vLLM server (multiprocessing knows their parent): the server
    itself belongs to the process that started it. The kernel watches the thread that did the start;
    vLLM starts its processes from main threads.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        _log.warning("prctl(PR_SET_PDEATHSIG): %s", os.strerror(ctypes.get_errno()))
    # A parent that died before the call above sends no signal any more.
    if os.getppid() != parent.pid:
        os.kill(os.getpid(), signal.SIGKILL)
