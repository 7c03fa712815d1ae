"""The `e2b` backend: programs in virtual machines of E2B, through its official SDK.

    backend.py   machines, started, handed out in order, ended    probes.py   key, SDK, answer
    account.py   E2B's control plane: make, list, renew, kill     pace.py     the rate of starts
    machine.py   one machine, and the runner in it                inside.py   starting the runner
    images.py    images: files added to a template, or a template that E2B builds
    calls.py     a deadline and an error type of ours around every call of the SDK

Without the SDK (the extra `e2b`) imports work, but no backend can be created.
"""

from .backend import E2BBackend

__all__ = ["E2BBackend"]
