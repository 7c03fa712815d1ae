"""The code that runs in the interpreters of programs and verifiers.

`locks.py` puts the kernel's locks on a process, `bpf.py` assembles system-call filters, `forks.py`
is the fork server that others extend, `programs.py` runs a program, or the cells of a session, in a
process that was forked for it, `files.py` reads what programs left, and `removal.py` removes it.

The verifier's workers, the programs of the local sandbox and the runner in containers and machines
are locked in by the same code, and each of them lists what stays allowed. It runs in their
interpreters too, from 3.8 on: standard library only, and no module here imports another.
"""
