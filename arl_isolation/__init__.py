"""The kernel's locks: `locks.py` puts them on a process, `bpf.py` assembles system-call filters.

The verifier's workers, the programs of the local sandbox and the runner in containers and machines
are locked in by the same code, and each of them lists what stays allowed. It runs in their
interpreters too, from 3.8 on: standard library only, and no module here imports another.
"""
