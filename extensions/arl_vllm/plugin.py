"""The plugin that vLLM loads in each of its processes when this package is installed in its
environment.

The plugin must be harmless to users who have both installed and use vLLM for something else.
"""

# vllm is not in the environment that checks types.
# pyright: reportMissingImports=false

from __future__ import annotations

import logging
import multiprocessing
import os

from arl_isolation.locks import die_with_parent

_log = logging.getLogger(__name__)

DIE_WITH_PARENT = "ARL_DIE_WITH_PARENT"
"""The environment variable that, at "1", makes a vLLM server's child processes die with it."""

TRIM_LOGPROBS = "ARL_TRIM_LOGPROBS"
"""The environment variable that, at "1", shortens replies with several log-probs per token."""

SHM, GLOO = "arl-shm", "arl-gloo"
"""The names of the weight-transfer backends, for --weight-transfer-config."""


def register() -> None:
    """Register the weight-transfer backends; may be called more than once. Never raises."""
    if os.environ.get(DIE_WITH_PARENT) == "1":
        _die_with_parent()
    if os.environ.get(TRIM_LOGPROBS) == "1":
        try:
            from .logprobs import trim_logprobs

            trim_logprobs()
        except ImportError as error:
            _log.warning("replies with several log-probs per token are not shortened: %s", error)
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
    """End with the server. The server itself, which multiprocessing knows no parent of, belongs to
    the process that started it. vLLM starts its processes from main threads, as this needs."""
    if (parent := multiprocessing.parent_process()) is None:
        return
    try:
        die_with_parent(parent.pid or 0)
    except OSError as error:
        _log.warning("%s", error)
