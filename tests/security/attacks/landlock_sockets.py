"""Without namespaces: sockets, which are to be had in pairs only."""

import contextlib
import os
import socket

import pytest_free as must
from arena import LANDLOCK_MODES, Case, all_are, attack, described


@attack(modes=LANDLOCK_MODES)
async def sockets_of_any_kind(case: Case) -> None:
    """To listeners of the host that a plain program of its user does reach."""
    path = str(case.arena.canary.parent / "tmp" / "socket")
    abstract = f"\0arl-{os.getpid()}-{id(case)}"
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0)))]
        for where in (path, abstract):
            servers.append(stack.enter_context(socket.socket(socket.AF_UNIX)))
            servers[-1].bind(where)
            servers[-1].listen()
        stack.callback(os.unlink, path)
        for server in servers:  # the control
            with socket.socket(server.family) as client:
                client.connect(server.getsockname())
                server.accept()[0].close()
        await all_are(case, f"""
def use(family, kind, where):
    with socket.socket(family, kind) as s: s.connect(where)
port = {servers[0].getsockname()[1]}
T("tcp", lambda: use(2, 1, ("127.0.0.1", port))); T("udp", lambda: use(2, 2, ("127.0.0.1", port)))
T("unix", lambda: use(1, 1, {path!r})); T("abstract", lambda: use(1, 1, {abstract!r}))
T("datagram", lambda: use(1, 2, {path!r})); T("six", lambda: use(10, 2, ("::1", 9)))
def pair(family, kind):
    out = (ctypes.c_int * 2)()
    if libc.socketpair(family, kind, 0, out) < 0: raise OSError(ctypes.get_errno(), "x")
for family in range(64):
    for kind in (1, 2, 3, 5, 0x80001, 0x801):
        T(f"{{family}}/{{kind}}", lambda: socket.socket(family, kind))
        if family == 1 and kind & 15 == 1: continue
        T(f"pair {{family}}/{{kind}}", lambda: pair(family, kind))
""", {"EACCES"})  # fmt: skip


ON_A_SOCKET = """
listener, own = {listener!r}, {own!r}
T("bind", lambda: s.bind(own)); T("listen", s.listen); T("accept", s.accept)
T("connect", lambda: s.connect(listener)); T("again", lambda: s.connect(""))
T("send to", lambda: s.sendto(b"x", listener))
T("message", lambda: s.sendmsg([b"x"], [], 0, listener))
"""


@attack(modes=LANDLOCK_MODES)
async def names_for_sockets_that_are_there(case: Case) -> None:
    """A pair for an event loop, and a session's own: no name, and no way to anybody else."""
    mark = f"{os.getpid()}-{id(case)}"
    allowed = {"EPERM", "EISCONN", "EOPNOTSUPP"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(f"\0arl-{mark}")
        on = ON_A_SOCKET.format(listener=f"\0arl-{mark}", own=f"\0arl-own-{mark}")
        await all_are(case, "s, _ = socket.socketpair()" + on, allowed)
        session = await case.sandbox.open_session()
        tries = """
import errno, os, socket
R = {}
def T(name, call):
    try: R[name] = repr(call())
    except OSError as error: R[name] = errno.errorcode[error.errno]
s = socket.socket(fileno=os.dup(3))
"""
        result = await session.run(tries + on + "print(set(R.values()))")
        assert result.ok, described(result)
        assert set(eval(result.stdout)) <= allowed, result.stdout
        server.setblocking(False)
        await must.fail(BlockingIOError, _received(server))
        await session.close()


async def _received(server: socket.socket) -> bytes:
    return server.recv(10)
