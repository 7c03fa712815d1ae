"""A small container image out of this machine's own Python, bash and core utilities.

    python scripts/sandbox_image.py             # arl-sandbox:latest, in the daemon at DOCKER_HOST
    python scripts/sandbox_image.py --tar FILE  # only the file system, as a tar

Needs no registry and no network. Linux with glibc; standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.client
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO
from urllib.parse import quote

IMAGE = "arl-sandbox:latest"
LABEL = "agentgym-rl.sandbox-image"
PYTHON = "/usr/bin/python3"
_PROGRAMS = """
awk base64 basename bash cat chmod cksum cmp comm cp cut date dd df diff dirname du echo env
expr false file find fold grep gzip head hostname id install join kill ln ls md5sum mkdir mkfifo
mktemp mv nl nproc od paste patch printf ps pwd readlink realpath rm rmdir sed seq sh sha256sum
sleep sort split stat stdbuf tac tail tar tee test timeout touch tr true truncate uname uniq wc
which whoami xargs yes
"""
PROGRAMS = _PROGRAMS.split()
_COMMON = "gcc_s.so.1 stdc++.so.6 dl.so.2 m.so.6 pthread.so.0 rt.so.1 util.so.1"
COMMON = [f"lib{name}" for name in _COMMON.split()]
"""The libraries that every image of Debian with Python has: programs that are added later (Node.js)
need them, and threads that end early (libgcc_s)."""
LEFT_OUT = re.compile(
    r"(^|/)(test|tests|idlelib|tkinter|ensurepip|turtledemo|config-[^/]*"
    r"|site-packages|dist-packages)(/|$)"  # installed packages may hold answers
)
FOLDERS = ("box", "dev", "etc", "proc", "root", "sys", "tmp", "var")
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000:sandbox:/box:/bin/bash\n",
    "etc/group": "root:x:0:\nsandbox:x:1000:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


def build(target: IO[bytes]) -> None:
    """Write the image's file system, as a tar."""
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name in (*FOLDERS, "usr", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name, points_to in LINKS.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, points_to
            tar.addfile(entry)
        for name, text in FILES.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
        binaries = _programs(tar) + _standard_library(tar)
        for name, path in _libraries(binaries).items():
            _add(tar, path, name)


def version() -> str:
    """Return the digest of this script: an image of another version of it is made again."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def import_image(docker_host: str, image: str = IMAGE) -> None:
    """Build the image and import it into a daemon.

    Raises:
        RuntimeError: the daemon refused it.
    """
    repository, _, tag = (image if ":" in image else f"{image}:latest").rpartition(":")
    lines = ("ENV PATH=/usr/bin", "WORKDIR /box", f"LABEL {LABEL}={version()}")
    changes = "".join(f"&changes={quote(line)}" for line in lines)
    with tempfile.TemporaryFile() as file:
        build(file)
        size = file.tell()
        file.seek(0)
        status, said = request(
            docker_host,
            "POST",
            f"/images/create?fromSrc=-&repo={quote(repository)}&tag={quote(tag)}{changes}",
            body=file,
            headers={"Content-Type": "application/x-tar", "Content-Length": str(size)},
        )
    if status != 200 or "errorDetail" in said:
        raise RuntimeError(f"the daemon refused the image: {status} {said[-500:]}")


def request(
    docker_host: str,
    method: str,
    path: str,
    *,
    body: IO[bytes] | None = None,
    headers: dict[str, str] | None = None,
    timeout_s: float = 120,
) -> tuple[int, str]:
    """Send a request to the daemon's API, on its socket.

    Raises:
        OSError: no daemon replies there.
    """
    if not docker_host.startswith("unix://"):
        raise OSError(f"DOCKER_HOST is {docker_host!r}; this script takes unix:///path/of/socket")
    connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
    with contextlib.closing(connection):
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(timeout_s)
        connection.sock.connect(docker_host.removeprefix("unix://"))
        # A daemon that refuses a request may reply before it has received all of it.
        with contextlib.suppress(BrokenPipeError):
            connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")


def _programs(tar: tarfile.TarFile) -> list[Path]:
    found = [Path(PYTHON)]
    version = Path(PYTHON).resolve().name
    _add(tar, Path(PYTHON), f"usr/bin/{version}")
    entry = tarfile.TarInfo("usr/bin/python3")
    entry.type, entry.linkname = tarfile.SYMTYPE, version
    if version != "python3":
        tar.addfile(entry)
    for name in PROGRAMS:
        path = shutil.which(name, path="/usr/bin:/bin")
        if path:  # the image lacks what this machine lacks
            _add(tar, Path(path), f"usr/bin/{name}")
            found.append(Path(path))
    return found


def _standard_library(tar: tarfile.TarFile) -> list[Path]:
    """Copy the standard library; return its compiled modules."""
    question = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    said = subprocess.run(
        [PYTHON, "-I", "-c", question], check=True, capture_output=True, text=True
    )
    root = Path(said.stdout.strip())
    compiled = []
    for path in sorted(root.rglob("*")):
        if LEFT_OUT.search(str(path.relative_to(root))) or not path.is_file():
            continue
        _add(tar, path, _merged(path))
        if path.suffix == ".so":
            compiled.append(path)
    return compiled


def _libraries(binaries: Iterable[Path]) -> dict[str, Path]:
    """Return the shared libraries that files need, and the loader, by their names in the image."""
    found: dict[str, Path] = {}
    for path in binaries:
        said = subprocess.run(["ldd", path], check=False, capture_output=True, text=True).stdout
        for name in re.findall(r"(/\S+\.so\S*)", said):
            found[_merged(Path(name))] = Path(name)
            for other in (Path(name).with_name(each) for each in COMMON):
                if other.exists():
                    found[_merged(other)] = other
    return found


def _merged(path: Path) -> str:
    """Return the path of a file in the image, where /lib is /usr/lib."""
    name = str(path).lstrip("/")
    return name if name.startswith("usr/") else f"usr/{name}"


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    with open(path, "rb") as file:
        about = os.fstat(file.fileno())
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = about.st_size, 0o755 if about.st_mode & 0o111 else 0o644
        entry.mtime = int(about.st_mtime)  # compared by cached bytecode
        tar.addfile(entry, file)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tar", type=Path, help="write the file system here, and do no more")
    parser.add_argument("--image", default=IMAGE)
    options = parser.parse_args()
    if options.tar:
        with options.tar.open("wb") as file:
            build(file)
        return 0
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    import_image(host, options.image)
    sys.stdout.write(json.dumps({"image": options.image, "docker_host": host}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
