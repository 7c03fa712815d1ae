"""The file system of programs: an empty root with a few read-only folders of the machine."""

import os

import kernel
from kernel import MS_BIND, MS_NODEV, MS_NOSUID, MS_PRIVATE, MS_RDONLY, MS_REC, MS_REMOUNT

_STAGE = "/sys"  # it always exists and is not needed; a mount in our own namespace hides it
_DEVICES = ("null", "zero", "full", "random", "urandom")
_LINKS = {
    **{"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"},
    # Links, not mounts: making or removing a mount costs a sandbox a wait for all processors.
    **{"tmp": "box/.tmp", "dev/shm": "../box/.shm"},
}
_FILES = {
    "passwd": "sandbox:x:0:0::/box:/bin/sh\n",
    "group": "sandbox:x:0:\n",
    "hosts": "127.0.0.1 localhost\n",
}
BOX = "/box"
PACKAGES = "/packages"
"""The folder of requested packages, in which nothing is hidden."""


def build(read_only: list[tuple[str, str]], unseen: list[str]) -> None:
    """Build the new root and enter it; the old one is unmounted. Needs its own mount namespace.

    read_only: (folder or file of the machine, path at which it appears).
    unseen: the real paths, in those folders, that appear empty.
    """
    kernel.mount("none", "/", "", MS_REC | MS_PRIVATE)
    kernel.mount("tmpfs", _STAGE, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for folder in ("usr", "etc", "dev", "proc", BOX[1:], "old"):
        os.makedirs(f"{_STAGE}/{folder}")
    for name, target in _LINKS.items():
        os.symlink(target, f"{_STAGE}/{name}")
    for source, target in read_only:
        _bind_read_only(source, _STAGE + target)
    for source, target in read_only:
        if not target.startswith(PACKAGES + "/"):
            _hide(unseen, os.path.realpath(source), _STAGE + target)
    for name, text in _FILES.items():
        with open(f"{_STAGE}/etc/{name}", "w") as file:
            file.write(text)
    for name in _DEVICES:
        open(f"{_STAGE}/dev/{name}", "w").close()
        kernel.mount(f"/dev/{name}", f"{_STAGE}/dev/{name}", "", MS_BIND)
    kernel.mount("/proc", f"{_STAGE}/proc", "", MS_BIND | MS_REC)
    os.chdir(_STAGE)
    kernel.pivot_root(".", "old")
    kernel.unmount("/old", kernel.MNT_DETACH)
    os.rmdir("/old")
    kernel.mount("none", "/", "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir("/")


def _bind_read_only(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "w").close()
    kernel.mount(source, target, "", MS_BIND | MS_REC)
    kernel.make_read_only(target)


def _hide(unseen: list[str], source: str, target: str) -> None:
    """Cover the `unseen` paths of a folder, which appears at `target`, with empty mounts.

    A path that its parent folders close to this process is closed to programs, too.
    """
    for path in unseen:
        if not path.startswith(source + "/"):
            continue
        place = target + path[len(source) :]
        if os.path.isdir(place):
            kernel.mount(_STAGE + BOX, place, "", MS_BIND)  # which is empty
        elif os.path.exists(place):
            kernel.mount("/dev/null", place, "", MS_BIND)
        else:
            continue
        kernel.make_read_only(place)


def fresh_box(disk_mb: int) -> int:
    """Mount an empty work folder in memory, `/tmp` and `/dev/shm` included; return its handle."""
    data = f"size={disk_mb}m,nr_inodes={64 * disk_mb},mode=700"
    kernel.mount("tmpfs", BOX, "tmpfs", MS_NOSUID | MS_NODEV, data)
    for name in (".tmp", ".shm"):
        os.mkdir(f"{BOX}/{name}", 0o700)
    return os.open(BOX, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def drop_box() -> None:
    """Unmount the work folder after every process is dead; the files go with the last handle."""
    kernel.unmount(BOX)
