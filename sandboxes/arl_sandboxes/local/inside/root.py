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
IMAGE_FOLDERS = ("etc", "home", "mnt", "opt", "proc", "root", "run", "srv", "usr")
IMAGE_SCRATCH = ("tmp", "var/tmp", "dev/shm")
_IMAGE_LINKS = {
    **{name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")},
    **{"dev/fd": "/proc/self/fd", "dev/stdin": "/proc/self/fd/0"},
    **{"dev/stdout": "/proc/self/fd/1", "dev/stderr": "/proc/self/fd/2"},
}
_IMAGE_FILES = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\n",
    "group": "root:x:0:\n",
    "hosts": "127.0.0.1 localhost\n",
}
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
        _make_place(source, _STAGE + target)
    _write_files(_STAGE, _FILES)
    _fill(_STAGE, read_only, unseen, _STAGE + BOX)
    os.chdir(_STAGE)
    kernel.pivot_root(".", "old")
    kernel.unmount("/old", kernel.MNT_DETACH)
    os.rmdir("/old")
    kernel.mount("none", "/", "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir("/")


def build_of_image(
    read_only: list[tuple[str, str]], unseen: list[str], image: dict, owner: int | None
) -> None:
    """Build the root of an image's sandbox, as `build` does, and enter it: an overlay of a small
    skeleton, the image's layer, and a file system in memory that takes all changes.

    The three are reachable through the overlay only, and the memory is freed with the last process
    of the mount namespace.

    owner: the user on the machine that programs are; None: this process is in a user namespace,
        where it is that user.
    """
    os.chdir(image["cache"])  # no path of the machine has to fit the syntax of the options
    kernel.mount("none", "/", "", MS_REC | MS_PRIVATE)
    kernel.mount("tmpfs", _STAGE, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    skeleton, changes, top = (f"{_STAGE}/{name}" for name in ("skeleton", "changes", "root"))
    for folder in (skeleton, changes, top, f"{_STAGE}/empty"):
        os.mkdir(folder)
    _make_skeleton(skeleton, read_only, image)
    if owner is not None:
        for path, folders, files in os.walk(skeleton):
            for name in (".", *folders, *files):
                os.chown(f"{path}/{name}", owner, owner, follow_symlinks=False)
    size_mb = image["disk_mb"]
    data = f"size={size_mb}m,nr_inodes={64 * size_mb},mode=755"
    kernel.mount("tmpfs", changes, "tmpfs", MS_NOSUID | MS_NODEV, data)
    layer = image["layer"]
    _overlay(f"{layer}:{skeleton}", changes, "root", top, owner)
    if os.path.isdir(f"{layer}/usr"):
        # The image adds files to /usr, of which programs may change those: all others belong to
        # the machine's root.
        _overlay(f"{layer}/usr:/usr", changes, "usr", f"{top}/usr", owner)
        _fill(top, [pair for pair in read_only if pair[1] != "/usr"], unseen, f"{_STAGE}/empty")
        usr = os.path.realpath("/usr")
        own = [
            path
            for path in unseen
            if path.startswith(usr + "/") and os.path.isdir(layer + "/usr" + path[len(usr) :])
        ]
        _hide([path for path in unseen if path not in own], usr, f"{top}/usr", f"{_STAGE}/empty")
        for number, path in enumerate(own):  # the image's files instead of the machine's
            place = "/usr" + path[len(usr) :]
            _overlay(layer + place, changes, f"usr.{number}", top + place, owner)
    else:
        _fill(top, read_only, unseen, f"{_STAGE}/empty")
    os.chdir(top)
    kernel.pivot_root(".", ".")  # which stacks the old root on the new one
    kernel.unmount(".", kernel.MNT_DETACH)
    os.chdir("/")


def _make_skeleton(skeleton: str, read_only: list[tuple[str, str]], image: dict) -> None:
    """Make the folders, links and files that every image has."""
    for folder in (*IMAGE_FOLDERS, *IMAGE_SCRATCH):
        os.makedirs(f"{skeleton}/{folder}")
    for folder in IMAGE_SCRATCH:
        os.chmod(f"{skeleton}/{folder}", 0o1777)
    for name, target in _IMAGE_LINKS.items():
        os.symlink(target, f"{skeleton}/{name}")
    for path, target in image["links"].items():
        os.makedirs(os.path.dirname(skeleton + path), exist_ok=True)
        os.symlink(target, skeleton + path)
    for source, target in read_only:
        _make_place(source, skeleton + target)
    _write_files(skeleton, _IMAGE_FILES)
    for name in _DEVICES:
        open(f"{skeleton}/dev/{name}", "w").close()


def _overlay(lower: str, changes: str, name: str, target: str, owner: int | None) -> None:
    """Mount an overlay whose top folder belongs to programs."""
    upper, work = f"{changes}/{name}", f"{changes}/{name}.work"
    for folder in (upper, work):
        os.mkdir(folder, 0o755)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    if owner is None:
        options += ",userxattr"
    else:
        os.chown(upper, owner, owner)
    kernel.mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, options)


def _make_place(source: str, target: str) -> None:
    """Make an empty folder or file, to be covered by `source`."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "w").close()


def _write_files(top: str, files: dict[str, str]) -> None:
    for name, text in files.items():
        with open(f"{top}/etc/{name}", "w") as file:
            file.write(text)


def _fill(top: str, read_only: list[tuple[str, str]], unseen: list[str], empty: str) -> None:
    """Mount the machine's folders, devices and `/proc` at their places below `top`."""
    for source, target in read_only:
        kernel.mount(source, top + target, "", MS_BIND | MS_REC)
        kernel.make_read_only(top + target)
    for source, target in read_only:
        if source == target:  # what is shown elsewhere was requested by name
            _hide(unseen, os.path.realpath(source), top + target, empty)
    for name in _DEVICES:
        place = f"{top}/dev/{name}"
        if not os.path.exists(place):
            open(place, "w").close()
        kernel.mount(f"/dev/{name}", place, "", MS_BIND)
    kernel.mount("/proc", f"{top}/proc", "", MS_BIND | MS_REC)


def _hide(unseen: list[str], source: str, target: str, empty: str) -> None:
    """Cover the `unseen` paths of a folder, which appears at `target`, with empty mounts.

    A path that its parent folders close to this process is closed to programs, too.
    """
    for path in unseen:
        if not path.startswith(source + "/"):
            continue
        place = target + path[len(source) :]
        if os.path.isdir(place):
            kernel.mount(empty, place, "", MS_BIND)
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
