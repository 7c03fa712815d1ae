"""The verifier pool: verifiers run in killable processes, as isolated as the machine allows.

`pool.py` is the entry point. `crew.py` keeps the workers.
`worker.py` and `zygote.py` are the host's ends of those processes; `inside/` runs in them.
"""

from .handle import Verifier
from .pool import Called, Status, VerifierPool, VerifierStats

__all__ = ["Called", "Status", "Verifier", "VerifierPool", "VerifierStats"]
