"""What a hostile answer might do in a worker; each says how far it got."""

import ctypes
import os
import signal
import socket
import sys
import threading


def _attempt(act):
    try:
        act()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def touch(*paths):
    """By whichever door: to make, to overwrite, to remove, to rename, to link, to change."""
    return {f"{path} {n}": _attempt(act) for path in paths for n, act in enumerate(_touching(path))}


def _touching(path):
    libc = ctypes.CDLL(None, use_errno=True)

    def through_libc():
        how = bytes([2]) + bytes(23)  # O_RDWR
        if libc.syscall(437, -100, path.encode(), how, 24) < 0:  # openat2
            raise OSError(ctypes.get_errno(), "openat2")

    return (
        lambda: open(path + ".new", "w").close(),
        lambda: open(path, "r+").close(),
        through_libc,
        lambda: os.truncate(path, 0),
        lambda: os.rename(path, path + ".moved"),
        lambda: os.link(path, path + ".link"),
        lambda: os.symlink("/etc/passwd", path + ".symlink"),
        lambda: os.mkdir(path + ".folder"),
        lambda: os.mkfifo(path + ".fifo"),
        lambda: os.chmod(path, 0o777),
        lambda: os.utime(path, (0, 0)),
        lambda: os.setxattr(path, "user.x", b"x"),
        lambda: os.close(os.open(os.path.dirname(path), os.O_TMPFILE | os.O_WRONLY)),
        lambda: os.unlink(path),
    )


def dial(port, path):
    """Sockets of every kind; a server of the machine listens at `port` and at `path`."""

    def connect(family, kind, address):
        def act():
            with socket.socket(family, kind) as dialled:
                dialled.settimeout(1)
                dialled.connect(address)

        return act

    def bind():
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))

    return {
        "tcp": _attempt(connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", port))),
        "udp": _attempt(connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", port))),
        "tcp6": _attempt(connect(socket.AF_INET6, socket.SOCK_STREAM, ("::1", port))),
        "unix": _attempt(connect(socket.AF_UNIX, socket.SOCK_STREAM, path)),
        "abstract": _attempt(connect(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + path)),
        "pair": _attempt(lambda: [end.close() for end in socket.socketpair()]),
        "bind": _attempt(bind),
        "netlink": _attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()),
    }


def execute():
    """Programs and processes."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number, *args):
        def act():
            found = libc.syscall(number, *args)
            if found == 0:
                os._exit(0)
            if found < 0:
                raise OSError(ctypes.get_errno(), "syscall")

        return act

    return {
        "execv": _attempt(lambda: os.execv("/bin/sh", ["sh", "-c", "true"])),
        "system": _attempt(lambda: _failed(os.system("true"))),
        "spawn": _attempt(lambda: os.posix_spawn("/bin/sh", ["sh", "-c", "true"], {})),
        "fork": _attempt(lambda: os.fork() or os._exit(0)),
        "vfork": _attempt(call(58)),
        "clone": _attempt(call(56, 17, 0, 0, 0, 0)),
        "clone3": _attempt(call(435, bytes(32) + b"\x11" + bytes(55), 88)),
        "execveat": _attempt(call(322, -100, b"/bin/true", None, None, 0)),
        "memfd": _attempt(lambda: os.memfd_create("program")),
    }


def _failed(status):
    if status:
        raise OSError(f"status {status}")


def bomb():
    """As many processes as it takes; how many there were."""
    for n in range(10_000):
        try:
            if os.fork() == 0:
                bomb()
        except OSError:
            return n
    return 10_000


def signals(*pids):
    """Every signal there is but the harmless, to others and to all."""
    libc = ctypes.CDLL(None, use_errno=True)

    def raw(number, *args):
        if libc.syscall(number, *args) < 0:
            raise OSError(ctypes.get_errno(), "syscall")

    found = {}
    for pid in pids:
        found[f"kill {pid}"] = _attempt(lambda pid=pid: os.kill(pid, signal.SIGKILL))
        found[f"killpg {pid}"] = _attempt(lambda pid=pid: os.killpg(pid, signal.SIGKILL))
        found[f"tkill {pid}"] = _attempt(lambda pid=pid: raw(200, pid, 9))
        found[f"tgkill {pid}"] = _attempt(lambda pid=pid: raw(234, pid, pid, 9))
        found[f"sigqueue {pid}"] = _attempt(lambda pid=pid: raw(129, pid, 9, bytes(128)))
        found[f"pidfd {pid}"] = _attempt(lambda pid=pid: os.pidfd_open(pid))
        found[f"ptrace {pid}"] = _attempt(lambda pid=pid: raw(101, 16, pid, 0, 0))
        found[f"prlimit {pid}"] = _attempt(lambda pid=pid: raw(302, pid, 7, bytes(16), None))
    return found


def reads(*paths):
    def read(path):
        with open(path, "rb") as file:
            return file.read(1)

    return {path: _attempt(lambda path=path: read(path)) for path in paths} | {
        f"list {path}": _attempt(lambda path=path: os.listdir(os.path.dirname(path)))
        for path in paths
    }


def escapes():
    """The locks themselves."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number, *args):
        def act():
            if libc.syscall(number, *args) < 0:
                raise OSError(ctypes.get_errno(), "syscall")

        return act

    return {
        "unshare": _attempt(call(272, 0x10000000)),
        "setns": _attempt(call(308, 0, 0)),
        "mount": _attempt(call(165, b"none", b"/tmp", b"tmpfs", 0, None)),
        "chroot": _attempt(lambda: os.chroot("/tmp")),
        "setuid": _attempt(lambda: os.setuid(0)),
        "seccomp": _attempt(call(317, 1, 0, b"")),
        "pdeathsig": _attempt(call(157, 1, 0, 0, 0, 0)),
        "setrlimit": _attempt(call(160, 9, b"\xff" * 16)),
        "io_uring": _attempt(call(425, 8, bytes(120))),
        "bpf": _attempt(call(321, 0, bytes(128), 128)),
        "keyctl": _attempt(call(250, 0, -3, 0)),
        "setsid": _attempt(os.setsid),
        "nice": _attempt(lambda: os.nice(-5)),
    }


def poison():
    """What is called next in this worker, and a thread that stays."""
    this = sys.modules[__name__]
    this.innocent = lambda: "poisoned"  # pyright: ignore[reportAttributeAccessIssue]
    threading.Thread(target=lambda: threading.Event().wait(), daemon=True).start()
    return "planted"


def innocent():
    return "well"
