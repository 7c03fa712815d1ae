"""A child of a slot: it locks itself in, waits for its program, and becomes the program."""

import builtins
import contextlib
import gc
import json
import linecache
import os
import resource
import socket
import sys

import session
import wire

from arl_isolation import locks
from arl_isolation.programs import exactly, execute, flush, reseed, run_main, run_program, shell

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/box", "LANG": "C.UTF-8"}
_OWN_MODULES = (
    "arl_isolation", "arl_isolation.bpf", "arl_isolation.forks", "arl_isolation.locks",
    "arl_isolation.programs", "arl_isolation.removal", "kernel", "landlock",
    "landlock_seccomp", "landlock_server", "namespace_server", "priority", "program", "root",
    "seccomp", "session", "slot_server", "syscalls", "wire", "work_folders",
)  # fmt: skip
_MANY = 1 << 20
_ALWAYS = (
    (resource.RLIMIT_NICE, 0),
    (resource.RLIMIT_RTPRIO, 0),
    (resource.RLIMIT_SIGPENDING, 1024),
    (resource.RLIMIT_MSGQUEUE, 0),
)
_REHEARSALS = 16
"""A number of runs after which CPython has specialized the code."""
_REHEARSED = b"""
import io
def f(n): return [str(i) for i in range(n)]
class A: x = 1
try: {}["a"]
except KeyError: pass
s = " ".join(f(20)); d = {i: i for i in range(50)}; t = sorted(d); io.StringIO().write(s)
print(s)
"""


def warm_up(preimport: list[str], path: list[str]) -> None:
    """Do once per slot the work that every child would otherwise repeat."""
    load(preimport, path)
    _restore_site_names()
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    sys.argv = ["main.py"]
    for kind, value in _ALWAYS:
        hard = resource.getrlimit(kind)[1]
        if hard == resource.RLIM_INFINITY or value < hard:
            resource.setrlimit(kind, (value, value))
    for _ in range(_REHEARSALS):
        rehearse()


def load(preimport: list[str], path: list[str]) -> None:
    sys.path.extend(path)
    for name in preimport:
        __import__(name)


def set_environment(variables: dict[str, str]) -> None:
    """Replace the environment of all later programs."""
    for environment in (ENVIRONMENT, os.environ):
        environment.clear()
        environment.update(variables)


def rehearse() -> None:
    """Take an order and run its program, whose output is discarded.

    Process 1 does so, so that its children find the interpreter's caches filled, in shared pages:
    each page that a child has to copy costs it microseconds, and there were hundreds.
    """
    ours, theirs = socket.socketpair()
    as_it_is = {"RLIMIT_NOFILE": resource.getrlimit(resource.RLIMIT_NOFILE)[1]}
    order = {"kind": "python", "files": [["a", 0, 1]], "code": [0, 1], "limits": as_it_is}
    text = json.dumps(order).encode()
    header = wire.HEADER.pack(len(text), len(_REHEARSED))
    with ours, theirs:
        socket.send_fds(ours, [header + text + _REHEARSED], [1])
        order, code, handles = receive(theirs)
    for handle in handles:
        os.close(handle)
    os.closerange(_MANY, _MANY + 1)
    limit(order["limits"])
    reseed()
    before = sys.modules["__main__"]
    if flush(execute(code)):
        raise RuntimeError("the rehearsal failed")
    sys.modules["__main__"] = before
    linecache.cache.clear()


def _restore_site_names() -> None:
    """Define `exit`, `quit` and `help`, which come from `site`, which is not loaded here."""
    import _sitebuiltins

    for name in ("quit", "exit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    builtins.help = _sitebuiltins._Helper()


def main(conn: socket.socket, filter: locks.Filter, domain: int | None, box: str = "/box") -> None:
    """Run the child; it returns only by an exception, before the program begins."""
    os.setpgid(0, 0)  # not setsid: a new session would lose the nice value
    locks.enter_folder(box)
    lock_in(filter, domain)
    reseed()
    order, payload, handles = receive(conn)
    is_there = locks.enter_folder(box)  # again: the last program may have removed it meanwhile
    for number, handle in enumerate(handles):
        os.dup2(handle, number, inheritable=True)
    for path, start, end in order["files"]:
        if not is_there and not os.path.isabs(path):
            raise NotADirectoryError(f"the work folder {box} is no folder that can be entered")
        _write(path, payload[start:end])
    kept = 3
    if order["kind"] not in ("repl", "shell"):
        conn.close()
        os.closerange(3, _MANY)
    else:
        kept = os.dup2(conn.detach(), 3)
        os.set_inheritable(kept, order["kind"] == "shell")
        os.closerange(4, _MANY)
    limit(order["limits"])
    code = payload[order["code"][0] : order["code"][1]] if "code" in order else b""
    del payload
    _forget_own_modules(box)
    gc.enable()
    if order["kind"] == "python":
        run_main(code)
    elif order["kind"] == "write":
        os._exit(0)
    elif order["kind"] == "exec":
        run_program(order["argv"], order["cwd"], ENVIRONMENT | order["env"])
    elif order["kind"] == "repl":
        session.serve(socket.socket(fileno=kept))
    elif order["kind"] == "shell":
        run_program(shell(), ".", ENVIRONMENT)


def give_up(conn: socket.socket, error: BaseException) -> None:
    """Report to the host the reason that no program began."""
    with contextlib.suppress(OSError):
        conn.send(wire.GAVE_UP + f"{type(error).__name__}: {error}".encode("utf-8", "replace"))


def lock_in(filter: locks.Filter, domain: int | None) -> None:
    locks.drop_capabilities()
    if domain is not None:
        locks.enter_domain(domain)
        os.close(domain)
    locks.set_dumpable(True)  # so that it can use its own /proc/self
    filter.install()


def receive(conn: socket.socket) -> tuple[dict, bytes, list[int]]:
    """Receive an order, the bytes it refers to, and the handles that become 0, 1, 2."""
    header, handles, _, _ = socket.recv_fds(conn, wire.HEADER.size, 3)
    if not header:
        os._exit(0)  # the host has no order for it
    header += exactly(conn, wire.HEADER.size - len(header), status=126)
    num_json, num_bytes = wire.HEADER.unpack(header)
    text = exactly(conn, num_json, status=126)
    return json.loads(text), exactly(conn, num_bytes, status=126), handles


def _forget_own_modules(box: str) -> None:
    """Hide our modules, so that a program can import its own `session.py`; ours keep working."""
    for name in _OWN_MODULES:
        sys.modules.pop(name, None)
    # After the standard library, so that no file of an earlier program replaces a part of it.
    sys.path.append(box)


def _write(path: str, data: bytes) -> None:
    if os.path.dirname(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    mode = 0o755 if data.startswith(b"#!") else 0o644
    if os.path.lexists(path):
        if os.path.isfile(path) and not os.path.islink(path):
            mode = os.stat(path).st_mode & 0o777
        os.unlink(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(path, "wb", opener=lambda name, _: os.open(name, flags, mode)) as file:
        file.write(data)


def limit(limits: dict[str, int]) -> None:
    """Set hard limits, which a process without capabilities cannot raise again."""
    for name, value in limits.items():
        soft, hard = value, value + 1 if name == "RLIMIT_CPU" else value
        resource.setrlimit(getattr(resource, name), (soft, hard))
