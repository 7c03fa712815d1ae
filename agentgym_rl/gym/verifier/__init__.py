"""Verifiers run in processes that can be killed, locked in as far as the machine can.

`pool.py` is the way in; `crew.py` keeps the workers, `imports.py` what they can call,
`worker.py` and `zygote.py` are the host's ends of those processes, `inside/` is what runs in them.
"""

from .handle import VerifierHandle
from .pool import Called, Status, VerifierPool, VerifierStats

__all__ = ["Called", "Status", "VerifierHandle", "VerifierPool", "VerifierStats"]
