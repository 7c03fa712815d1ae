"""A trial of each thing that a slot needs, in turn; prints [[name, errno, text], ...]."""

import errno
import json
import os
import sys

import kernel
import namespace_server
import seccomp

from arl_isolation import locks


def user_namespace() -> None:
    kernel.unshare(kernel.CLONE_NEWUSER, "user")


def uid_map() -> None:
    namespace_server.enter_user_namespace(299_999)


def mount_namespace() -> None:
    uid_map()
    kernel.unshare(kernel.CLONE_NEWNS, "mount")


def other_namespaces() -> None:
    uid_map()
    kernel.unshare(namespace_server.INNER | kernel.CLONE_NEWNS, "mount, pid, net, ipc, uts")


def mount() -> None:
    mount_namespace()
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", "/sys", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m")


def read_only_mounts() -> None:
    mount()
    os.mkdir("/sys/usr")
    kernel.mount("/usr", "/sys/usr", "", kernel.MS_BIND | kernel.MS_REC)
    kernel.make_read_only("/sys/usr")


def proc() -> None:
    other_namespaces()
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    child = os.fork()
    if child == 0:
        sys.exit(
            attempt(
                lambda: kernel.mount(
                    "proc", "/proc", "proc", kernel.MS_RDONLY, namespace_server.PROC
                )
            )[0]
        )
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise OSError(status, f"mount proc: {os.strerror(status)}")


def overlay() -> None:
    """Change a file and replace a folder through an overlay, as slots of images mount it."""
    if os.getuid() == 0 and kernel.may_mount():
        kernel.unshare(kernel.CLONE_NEWNS, "mount")
        options = ""
    else:
        mount_namespace()
        options = ",userxattr"
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", "/sys", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m")
    for folder in ("low/folder", "up", "work", "root"):
        os.makedirs(f"/sys/{folder}")
    with open("/sys/low/folder/file", "w") as file:
        file.write("old")
    layers = "lowerdir=/sys/low,upperdir=/sys/up,workdir=/sys/work"
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("overlay", "/sys/root", "overlay", flags, layers + options)
    os.unlink("/sys/root/folder/file")
    os.rmdir("/sys/root/folder")
    os.mkdir("/sys/root/folder")
    if os.listdir("/sys/root/folder"):
        raise OSError(errno.EIO, "a removed folder's files came back")


def filter_calls() -> None:
    locks.no_new_privileges()
    locks.Filter(seccomp.program()).install()


TRIALS = {
    "user namespace": user_namespace,
    "uid map": uid_map,
    "mount namespace": mount_namespace,
    "network, pid, ipc and uts namespaces": other_namespaces,
    "mount": mount,
    "read-only mounts": read_only_mounts,
    "proc": proc,
    "overlay": overlay,
    "seccomp": filter_calls,
}


def attempt(trial) -> tuple[int, str]:
    try:
        detail = trial()
    except OSError as error:
        return error.errno or 1, str(error.strerror or error)
    return 0, detail or ""


def main(trials=TRIALS) -> None:
    found = []
    for name, trial in trials.items():
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, json.dumps([name, *attempt(trial)]).encode())
            os._exit(0)
        os.close(write)
        with open(read, "rb") as answers:
            result = answers.read()
        os.waitpid(child, 0)
        found.append(json.loads(result) if result else [name, 1, "the trial died"])
    print(json.dumps(found))
