"""The `local` backend: programs in namespaces on this machine, without a daemon or a package.

backend.py   slots, handed out and taken back         probes.py   the kernel's features, tested
sandbox.py   one slot as one episode's world          cgroup.py   bounds on a complete slot
run.py       one program, from order to result        session.py  interpreters and shells
slot.py      the host's side of a slot                child.py    a prepared process of a slot
output.py    what a program writes                interpreter.py processes.py
check.py     a search for gaps in its own isolation
inside/      the slot's side: the code that runs in the namespaces, standard library only

With `isolation="landlock"` there are no namespaces: inside/landlock_server.py is the fork server
instead of inside/namespace_server.py, and three files replace the namespaces:
inside/landlock_seccomp.py (system calls), inside/landlock.py (files), inside/work_folders.py (the
work folder).
"""

from .backend import LocalBackend

__all__ = ["LocalBackend"]
