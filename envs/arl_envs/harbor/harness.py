"""The verifier of our own tasks, a file of its own in /tests: cases in, reward.json out.

Three kinds of processes share the work. The judge reads the nonce from standard input and the
cases from a file that it deletes; it never runs code of the agent. The server is a new interpreter
that knows neither, so the memory of its forks holds no secret. A player, forked from the server
for each case, imports the agent's code and calls it. A player prints the values of its calls as
JSON; the judge compares them.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import json
import math
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
import tarfile
import time
import zlib
from typing import Any

if __package__:
    from .arl_judge import LIBC, REAP_S, control, harden, reap, taken_nonce, write_reward
else:  # in /tests, which an isolated interpreter does not search
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from arl_judge import LIBC, REAP_S, control, harden, reap, taken_nonce, write_reward  # pyright: ignore[reportMissingImports]

    sys.path.pop(0)

MAX_RESULT_BYTES = 1 << 20
MAX_FILE_BYTES = 4 << 20
MAX_DEPTH = 40
MAX_ITEMS = 20_000
MAX_OVERTIME = 3
"""The number of cases that may run over their time: the others are then not played."""
CASE_CPU_S = 2
CASE_WALL_S = 10.0
PLAYER_MEMORY_BYTES = 1 << 30
PLAYER_FILE_BYTES = 16 << 20
NO_NEW_PRIVILEGES = 38
"""The option of prctl(2) by which a program gets no more rights by what it starts."""
CAPABILITIES_VERSION = 0x20080522
DONE, OVERTIME, LEFTOVERS = b"d", b"o", b"l"


class Unfit(Exception):
    """A value that has no exact form in JSON."""


class Tampered(Exception):
    """The error for processes of the agent that outlive their case: there is no reward."""


# ------------------------------------------------------------------ values
def encode(value: Any, depth: int = 0, left: list[int] | None = None) -> Any:
    """Return a value of exact builtin types as JSON in which tuples and dictionaries stay apart.

    Raises:
        Unfit: the value, or a part of it, is of another type, too large or too deep.
    """
    left = [MAX_ITEMS] if left is None else left
    left[0] -= 1
    if depth > MAX_DEPTH or left[0] < 0:
        raise Unfit("too large")
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"f": repr(value)}
    if kind is list:
        return [encode(item, depth + 1, left) for item in value]
    if kind is tuple:
        return {"t": [encode(item, depth + 1, left) for item in value]}
    if kind is dict:
        pairs = value.items()
        return {"d": [[encode(k, depth + 1, left), encode(v, depth + 1, left)] for k, v in pairs]}
    if kind in (set, frozenset):
        return {"s": sorted((encode(item, depth + 1, left) for item in value), key=json.dumps)}
    raise Unfit(kind.__name__)


def decode(value: Any) -> Any:
    """Return the value that `encode` was given."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, items),) = value.items()
    if kind == "f":
        return float(items)
    if kind == "d":
        return {decode(k): decode(v) for k, v in items}
    return {"t": tuple, "s": set}[kind](decode(item) for item in items)


def same(wanted: Any, got: Any) -> bool:
    """Return whether two encoded values are the same: exact types, floats up to rounding."""
    if type(wanted) is not type(got):
        return False
    if type(wanted) is float:
        return math.isclose(wanted, got, rel_tol=1e-9, abs_tol=1e-12)
    if type(wanted) is list:
        return len(wanted) == len(got) and all(map(same, wanted, got))
    if type(wanted) is not dict:
        return wanted == got
    if wanted.keys() != got.keys():
        return False
    if "d" in wanted and type(got["d"]) is list:
        return same(*(sorted(one["d"], key=json.dumps) for one in (wanted, got)))
    return all(same(wanted[key], got[key]) for key in wanted)


# ------------------------------------------------------------------ processes
def surrender() -> None:
    """Give up all rights of a superuser, who could read the memory of the judge.

    Raises:
        OSError: the kernel refuses.
    """
    control(NO_NEW_PRIVILEGES, 1)
    header, none = struct.pack("=Ii", CAPABILITIES_VERSION, 0), bytes(24)
    if LIBC.capset(header, none) != 0:
        raise OSError(ctypes.get_errno(), "capset failed")


def receive(link: socket.socket, size: int, end: float) -> bytes:
    """Return `size` bytes.

    Raises:
        OSError: the other side is gone, or silent until `end`.
    """
    data = bytearray()
    while len(data) < size:
        link.settimeout(max(end - time.monotonic(), 0.001))
        more = link.recv(min(size - len(data), 1 << 16))
        if not more:
            raise ConnectionError("the other side is gone")
        data += more
    return bytes(data)


# ------------------------------------------------------------------ the player
def play(steps: list[dict[str, Any]], app: str, out: int) -> None:
    """Play a case in this process and write the outcome of each step to `out`; never return."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.dup2(out, 3)
    os.closerange(4, 1024)
    lower(resource.RLIMIT_CPU, CASE_CPU_S, CASE_CPU_S + 1)
    lower(resource.RLIMIT_AS, PLAYER_MEMORY_BYTES, PLAYER_MEMORY_BYTES)
    lower(resource.RLIMIT_FSIZE, PLAYER_FILE_BYTES, PLAYER_FILE_BYTES)
    if resource.getrlimit(resource.RLIMIT_CORE)[1] > 1:  # sandboxes set 1, and refuse all others
        lower(resource.RLIMIT_CORE, 0, 0)
    surrender()
    os.chdir(app)
    sys.path.insert(0, app)
    current: Any = None
    said = []
    for step in steps:
        try:
            target = current if "method" in step else named(step.get("call") or step["new"])
            if "method" in step:
                target = getattr(current, step["method"])
            value = target(*decode(step["args"])) if step["args"] is not None else target
            if "new" in step:
                current, value = value, None
            said.append({"value": encode(value)})
        except Unfit as error:
            said.append({"unfit": str(error)})
        except BaseException as error:
            said.append({"raises": type(error).__name__})
    data = json.dumps(said).encode()
    while data:
        data = data[os.write(3, data) :]


def lower(kind: int, soft: int, hard: int) -> None:
    """Lower a limit of this process; a sandbox may have set a lower one already."""
    most = resource.getrlimit(kind)[1]
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))


def named(target: str) -> Any:
    """Return the object that "package.module:name" names."""
    module, _, name = target.partition(":")
    value = __import__(module, fromlist=["_"])
    for part in name.split("."):
        value = getattr(value, part)
    return value


# ------------------------------------------------------------------ the server
def serve(app: str) -> None:
    """Play the cases that come through standard input, each in a fresh fork, until it closes."""
    import bisect, collections, copy, dataclasses, datetime, enum, functools  # noqa: E401, F401, I001
    import heapq, itertools, re, string, textwrap, typing  # noqa: E401, F401 - forks find them loaded

    harden()
    link = socket.socket(fileno=os.dup(0))
    while True:
        try:
            (size,) = struct.unpack(">I", receive(link, 4, time.monotonic() + 3600))
            steps = json.loads(receive(link, size, time.monotonic() + 60))
        except OSError:
            return
        pid, how, data = attended(steps, app, link)
        if not reap(pid):
            how = LEFTOVERS
        link.settimeout(60)
        link.sendall(how + struct.pack(">I", len(data)) + data)


def attended(
    steps: list[dict[str, Any]], app: str, link: socket.socket
) -> tuple[int, bytes, bytes]:
    """Return the process number of a player, the way it ended, and its output."""
    said, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            link.close()
            os.close(said)
            play(steps, app, out)
        finally:
            os._exit(0)
    os.close(out)
    os.set_blocking(said, False)
    try:
        return (pid, *followed(pid, said))
    finally:
        os.close(said)


def followed(pid: int, said: int) -> tuple[bytes, bytes]:
    """Return how the player `pid` ended, and what came through its pipe, until either is over."""
    end = time.monotonic() + CASE_WALL_S
    data = bytearray()
    while True:
        wait_s = min(end - time.monotonic(), 0.005)
        if wait_s <= 0:
            return OVERTIME, b""
        spoke = select.select([said], [], [], wait_s)[0]
        ended = (0, 0) if spoke else os.waitpid(pid, os.WNOHANG)
        try:
            while more := os.read(said, 1 << 16):
                data += more
                if len(data) > MAX_RESULT_BYTES:
                    return DONE, b""
            return DONE, bytes(data)  # every writer has closed it
        except BlockingIOError:
            pass
        if ended[0]:
            cpu = os.WIFSIGNALED(ended[1]) and os.WTERMSIG(ended[1]) == signal.SIGXCPU
            return (OVERTIME if cpu else DONE), bytes(data)


# ------------------------------------------------------------------ the judge
class Server:
    """The judge's end of a server; a new one is started if it is gone or silent."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._link: socket.socket | None = None
        self._first = 2
        """The process number of the server that was started last."""

    def ask(self, steps: list[dict[str, Any]]) -> tuple[bytes, bytes]:
        """Return the end of a case and its player's output; a failing server counts as overtime.

        Raises:
            Tampered: processes of the agent cannot be ended.
        """
        if self._link is None:
            self._start()
        assert self._link is not None
        order = json.dumps(steps).encode()
        end = time.monotonic() + CASE_WALL_S + 2 * REAP_S
        try:
            self._link.settimeout(60)
            self._link.sendall(struct.pack(">I", len(order)) + order)
            head = receive(self._link, 5, end)
            (size,) = struct.unpack(">I", head[1:])
            data = receive(self._link, min(size, MAX_RESULT_BYTES), end)
        except OSError:
            self.close()
            return OVERTIME, b""
        if head[:1] == LEFTOVERS:
            self.close()
        return head[:1], data

    def close(self) -> None:
        """End the server and everything below it.

        Raises:
            Tampered: something does not end.
        """
        if self._link is not None:
            self._link.close()
            self._link = None
        if not reap(self._first):
            raise Tampered("processes of the agent cannot be ended")

    def _start(self) -> None:
        self._link, theirs = socket.socketpair()
        command = [sys.executable, "-I", "-S", "-B", os.path.abspath(__file__)]
        known = {"PATH": os.environ.get("PATH", os.defpath), "HOME": self._app, "LC_ALL": "C.UTF-8"}
        actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
        command += ["--serve", "--app", self._app]
        self._first = os.posix_spawn(sys.executable, command, known, file_actions=actions)
        theirs.close()


def played(cases: list[dict[str, Any]], app: str) -> list[bool]:
    """Return for each case of calls whether every step came out as expected."""
    server = Server(app)
    verdicts, overtime = [], 0
    try:
        for case in cases:
            if overtime >= MAX_OVERTIME:
                verdicts.append(False)
                continue
            how, data = server.ask(case["steps"])
            overtime += how == OVERTIME
            verdicts.append(how == DONE and right(case["expected"], data))
    finally:
        server.close()
    return verdicts


def right(expected: list[Any], data: bytes) -> bool:
    """Return whether a player's bytes are exactly the expected result."""
    try:
        return same(expected, json.loads(data))
    except (ValueError, RecursionError):
        return False


def content(path: str, app: str) -> bytes:
    """Return the bytes of a regular file below `app`; no link on the way is followed.

    Raises:
        OSError: there is no such file, it is something else, or larger than MAX_FILE_BYTES.
    """
    folder = os.open(app, os.O_RDONLY | os.O_DIRECTORY)
    *parents, name = path.split("/")
    try:
        for parent in parents:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            below = os.open(parent, flags, dir_fd=folder)
            os.close(folder)
            folder = below
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)
    with open(file, "rb") as opened:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            raise OSError(f"{path}: no regular file of at most {MAX_FILE_BYTES} bytes")
        return opened.read(MAX_FILE_BYTES + 1)


def holds(check: dict[str, Any], app: str) -> bool:
    """Return whether one statement about the files below `app` is true."""
    path, kind = check["path"], check["is"]
    if kind == "absent":
        return not os.path.lexists(os.path.join(app, path))
    if kind == "tree":
        return regular_files(os.path.join(app, path)) == check["files"]
    try:
        data = content(path, app)
    except OSError:
        return False
    try:
        if kind == "text":
            return data.decode().rstrip() == check["text"].rstrip()
        if kind == "json":
            return same(check["value"], encode(json.loads(data)))
        if kind == "tar":
            return members(data) == check["files"]
    except (
        ValueError,
        RecursionError,
        Unfit,
        OSError,
        EOFError,
        zlib.error,
        tarfile.TarError,
    ) as error:
        print(f"{path}: {type(error).__name__}: {error}", file=sys.stderr)
        return False
    raise ValueError(f"check {kind!r}: expected absent, tree, text, json or tar")


def regular_files(folder: str) -> list[str]:
    """Return the sorted paths of everything but folders below a folder."""
    found = []
    for place, _, names in os.walk(folder):
        found += [os.path.relpath(os.path.join(place, name), folder) for name in names]
        if len(found) > MAX_ITEMS:
            break
    return sorted(found)


def members(data: bytes) -> dict[str, str]:
    """Return the files of a tar archive with their texts."""
    found: dict[str, str] = {}
    size = 0
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for number, info in enumerate(archive):
            size += info.size
            if number > MAX_ITEMS or size > MAX_FILE_BYTES:
                raise Unfit("an archive that is too large")
            if info.isfile():
                file = archive.extractfile(info)
                found[plain(info.name)] = file.read().decode() if file else ""
    return found


def plain(name: str) -> str:
    """Return the name of an archive's member without a leading "./"."""
    return name[2:] if name.startswith("./") else name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", default="/tests")
    parser.add_argument("--app", default="/app")
    parser.add_argument("--logs", default="/logs/verifier")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.app)
        return
    harden()
    nonce = taken_nonce()
    path = os.path.join(options.tests, "cases.json")
    with open(path, "rb") as file:
        order = json.load(file)
    os.unlink(path)
    if order["mode"] == "calls":
        verdicts = played(order["cases"], options.app)
    else:
        verdicts = [holds(check, options.app) for check in order["checks"]]
    fraction = sum(verdicts) / len(verdicts)
    reward = fraction if order.get("partial", False) else float(all(verdicts))
    write_reward(options.logs, {"reward": reward, "fraction": fraction}, nonce)
    print(f"{sum(verdicts)} of {len(verdicts)} cases passed")


if __name__ == "__main__":
    main()
