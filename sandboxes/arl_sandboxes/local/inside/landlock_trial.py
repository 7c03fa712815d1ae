"""A trial of each thing that a slot without namespaces needs; prints the same as trial.py.

Argument, in JSON: the configuration that the slot would be started with.
"""

import json
import os
import signal
import sys

import landlock
import landlock_seccomp
import landlock_server
import trial

from arl_isolation import locks

_UID = 299_999


def version() -> str:
    found = locks.landlock_version()
    if found < locks.LOWEST_LANDLOCK:
        raise OSError(f"version {found}, {locks.LOWEST_LANDLOCK} is the least")
    return f"version {found}"


def domain() -> None:
    locks.no_new_privileges()
    box = os.open("/tmp", os.O_PATH)
    locks.enter_domain(landlock.make(["/usr"], box))
    try:
        os.listdir("/proc/1")
    except PermissionError:
        return
    raise OSError("it keeps nothing closed")


def filter_calls() -> None:
    locks.no_new_privileges()
    locks.Filter(landlock_seccomp.program(os.getpid())).install()
    try:
        child = os.fork()
    except PermissionError:
        return
    if child == 0:
        os._exit(0)
    raise OSError("it keeps nothing closed")


def users() -> None:
    """Check that root can make a process of another user, and can still end it."""
    read, write = os.pipe()
    me = os.getpid()
    child = os.fork()
    if child == 0:
        number, _ = trial.attempt(lambda: landlock_server.become(_UID, me))
        os.write(write, bytes([number]))
        signal.pause()
    number = os.read(read, 1)[0]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if number:
        raise OSError(number, os.strerror(number))


def folders(config: dict) -> None:
    """Check that the programs' user can read each folder."""
    landlock_server.become(_UID if os.getuid() == 0 else None, os.getppid())
    for path in landlock_server.readable(config):
        try:
            os.close(os.open(path, os.O_RDONLY))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise OSError(error.errno, f"{path}: {error.strerror}") from error


def main() -> None:
    config = json.loads(sys.argv[1])
    trials = {"landlock": version, "landlock domain": domain, "seccomp": filter_calls}
    if os.getuid() == 0:
        trials["users"] = users
    trial.main(trials | {"folders": lambda: folders(config)})
