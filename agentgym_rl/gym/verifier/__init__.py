"""The verifier pool: verifiers run in killable processes, as isolated as the machine allows.

`pool.py` is the entry point. `crew.py` keeps the workers. `processes.py` has the host's ends of
their processes; `inside/` runs in them.
"""

from .pool import Called, Status, VerifierPool, VerifierStats

__all__ = ["Called", "Status", "VerifierPool", "VerifierStats"]
