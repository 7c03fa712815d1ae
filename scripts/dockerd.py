"""A docker daemon of our own, for the docker sandbox backend and its tests.

    eval "$(python scripts/dockerd.py start)"   # prints: export DOCKER_HOST=unix://...
    python scripts/dockerd.py status
    python scripts/dockerd.py stop              # ends it and removes all it made
    python scripts/dockerd.py run COMMAND       # with a daemon that answers, or one only for it

`start` installs Debian's docker.io where there is no dockerd, starts one with a data folder, socket
and cgroup of its own, without networks or a registry, and gives it the image of sandbox_image.py.
Needs root. Safe to run again: what is there already is kept. Everything is in one folder (--folder,
default ~/.cache/arl-docker); another daemon on the machine is not touched.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import sandbox_image

FOLDER = Path.home() / ".cache" / "arl-docker"
CGROUP = "arl-docker"
SHARED = ("/run/docker", "/run/containerd")  # made by every dockerd, whatever its folders
KEY = Path("/etc/docker/key.json")  # and this by those up to 20.10
PACKAGES = {"docker.io": "dockerd", "iptables": "iptables"}
START_TIMEOUT_S, STOP_TIMEOUT_S, COMMAND_END_S = 60, 60, 20
RUNSC = (
    '{"runtimes": {"runsc": {"path": "%s", "runtimeArgs": ["--platform=%s", "--network=none"]}}}'
)


class Failed(Exception):
    """An error whose message has the cause and the remedy."""


def say(text: str) -> None:
    """Print a message to stderr, since stdout is for the shell."""
    sys.stderr.write(f"dockerd.py: {text}\n")


def start(folder: Path) -> None:
    if os.getuid():
        raise Failed("a docker daemon needs root")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two instances of this script at once
        if not answers(host(folder)):
            install()
            launch(folder)
        if has_image(host(folder)):
            say(f"{sandbox_image.IMAGE} is there")
        else:
            sandbox_image.import_image(host(folder))
            say(f"{sandbox_image.IMAGE} made from this machine's Python")


def run(folder: Path, command: list[str]) -> int:
    """Run the command and return its exit status. A daemon that was running stays; one that is
    started for it ends."""
    for address in (os.environ.get("DOCKER_HOST"), "unix:///var/run/docker.sock", host(folder)):
        if address and answers(address):
            say(f"using the daemon at {address}")
            if not has_image(address):
                sandbox_image.import_image(address)
                say(f"{sandbox_image.IMAGE} made there; it stays (docker image rm)")
            return _obey(command, address)
    try:
        start(folder)
        return _obey(command, host(folder))
    finally:
        stop(folder)


def _obey(command: list[str], address: str) -> int:
    """Run a command; when this process is terminated, the command ends first."""
    with subprocess.Popen(command, env=os.environ | {"DOCKER_HOST": address}) as process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            try:
                process.wait(COMMAND_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def install() -> None:
    lacking = [package for package, program in PACKAGES.items() if not shutil.which(program)]
    if not lacking:
        return
    if not shutil.which("apt-get"):
        if not shutil.which("dockerd"):
            raise Failed("no dockerd and no apt-get: install docker with the system's own means")
        return
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (
        ["update"],
        ["install", "-y", "--no-install-recommends", *lacking],
    ):
        say("apt-get " + " ".join(command))
        done = subprocess.run(
            ["apt-get", *command], env=environment, stdout=sys.stderr, check=False
        )
        if done.returncode:
            raise Failed(
                f"apt-get {command[0]} failed with {done.returncode}: without a package index "
                f"{' and '.join(lacking)} must be installed by hand"
            )


def launch(folder: Path) -> None:
    command = [
        "dockerd",
        f"--data-root={folder}/data",
        f"--exec-root={folder}/exec",
        f"--pidfile={folder}/docker.pid",
        f"--host={host(folder)}",
        f"--config-file={folder}/daemon.json",
        f"--cgroup-parent=/{CGROUP}",
        "--bridge=none",
        "--iptables=false",
        "--ip6tables=false",
    ]
    runsc = shutil.which("runsc")
    (folder / "daemon.json").write_text(RUNSC % (runsc, "ptrace") if runsc else "{}")
    if not KEY.exists():
        (folder / "made_key").touch()
    if pid(folder) is None:
        (folder / "docker.pid").unlink(missing_ok=True)
    with open(folder / "dockerd.log", "ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while not answers(host(folder)):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            tail = "\n".join((folder / "dockerd.log").read_text().splitlines()[-10:])
            raise Failed(f"dockerd did not start ({folder}/dockerd.log):\n{tail}")
        time.sleep(0.05)
    say(f"daemon {process.pid} answers at {host(folder)}")


def stop(folder: Path) -> None:
    found = pid(folder)
    if found is not None:
        os.kill(found, signal.SIGTERM)  # it ends its containers, and containerd
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while pid(folder) is not None:
            if time.monotonic() > deadline:
                raise Failed(f"daemon {found} did not end within {STOP_TIMEOUT_S} s")
            time.sleep(0.05)
        with contextlib.suppress(ChildProcessError):  # unless it was started by this process
            os.waitpid(found, 0)
        say(f"daemon {found} ended")
    for line in reversed(Path("/proc/mounts").read_text().splitlines()):
        mounted = line.split()[1].encode().decode("unicode_escape")
        if Path(mounted).is_relative_to(folder):
            subprocess.run(["umount", "--lazy", mounted], check=False)
    if (folder / "made_key").exists():
        KEY.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # settings of another user
            KEY.parent.rmdir()
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise Failed(f"{folder} could not be removed")
    for top in _cgroups():
        for path, _, _ in os.walk(top, topdown=False):
            os.rmdir(path)
    for top in SHARED:
        for path, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):  # another daemon's
                os.rmdir(path)
    say("nothing is left")


def _cgroups() -> list[Path]:
    """Yield our control groups, of every controller."""
    root = Path("/sys/fs/cgroup")
    return [path for path in (root / CGROUP, *root.glob(f"*/{CGROUP}")) if path.is_dir()]


def host(folder: Path) -> str:
    return f"unix://{folder}/docker.sock"


def pid(folder: Path) -> int | None:
    """Return the process id of our daemon, if it runs."""
    try:
        number = int((folder / "docker.pid").read_text())
        words = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return number if f"--pidfile={folder}/docker.pid".encode() in words else None


def answers(address: str) -> bool:
    try:
        return sandbox_image.request(address, "GET", "/_ping", timeout_s=5)[0] == 200
    except OSError:
        return False


def has_image(address: str) -> bool:
    """Return whether the daemon has the image that sandbox_image.py makes now."""
    status, said = sandbox_image.request(address, "GET", f"/images/{sandbox_image.IMAGE}/json")
    return status == 200 and sandbox_image.version() in said


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("start", "stop", "status", "run"))
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="of `run`, and its arguments")
    options = parser.parse_args()
    if bool(options.command) != (options.action == "run"):
        parser.error("`run`, and it alone, takes a command")
    folder = options.folder.absolute()
    try:
        if options.action == "run":
            signal.signal(signal.SIGTERM, _end)
            return run(folder, options.command)
        if options.action == "stop":
            stop(folder)
        elif options.action == "start":
            start(folder)
            sys.stdout.write(f"export DOCKER_HOST={host(folder)}\n")
        else:
            alive = answers(host(folder))
            sys.stdout.write(f"{host(folder)} {'answers' if alive else 'does not answer'}\n")
            return 0 if alive else 1
    except (Failed, OSError, RuntimeError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
