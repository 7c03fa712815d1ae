"""A Ray cluster on this machine whose nodes can be cut off from each other.

    python scripts/ray_nodes.py run --nodes 3 -- arl train --cluster ray --address auto ...
    python scripts/ray_nodes.py cut 1     # from another terminal: node 1 is unreachable
    python scripts/ray_nodes.py heal 1
    python scripts/ray_nodes.py kill 1    # all of its processes

`run` starts a head and the given number of nodes, each with a network namespace and an address of
its own behind one bridge, runs the command on the head, and removes everything however that ends;
what an earlier one left after a `kill -9` is removed first. The head is node 0 and has no CPUs, so
that engines, trainer ranks and rollout workers are on the others. Needs root, iproute2 (Debian) and
the extra `ray`. There is one such cluster on a machine at a time.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

BRIDGE, NAMESPACE, LINK = "arl-ray", "arl-ray-{}", "arl-ray-v{}"
NETWORK = "10.213.47.{}"
PORT = 6379
FOLDER = Path("/run/arl-ray-nodes")
NAMESPACES = Path("/run/netns")
STORE_BYTES = 80_000_000
START_S, END_S = 120.0, 10.0
OPTIONS = {
    "RAY_worker_niceness": "0",  # 15 by default: on a busy machine nothing would ever start
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}


class Failed(Exception):
    """An error whose message has the cause and the remedy."""


class RayNodes:
    """The cluster, as a context manager. Node 0 is the head."""

    def __init__(self, count: int, *, cpus: int = 2) -> None:
        """Store the arguments: `count` nodes of `cpus` CPUs each, in addition to the head, which
        has none."""
        self.count, self.cpus = count, cpus
        self._lock: int | None = None
        self._started: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        """Return the address of the cluster, from within it."""
        return f"{NETWORK.format(1)}:{PORT}"

    def __enter__(self) -> RayNodes:
        check_machine()
        FOLDER.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(FOLDER / "lock", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise Failed("another cluster of this kind is running on this machine") from None
        try:
            self._remove()
            ip("link", "add", BRIDGE, "type", "bridge")
            ip("address", "add", f"{NETWORK.format(254)}/24", "dev", BRIDGE)
            ip("link", "set", BRIDGE, "up")
            for number in range(self.count + 1):
                self._connect(number)
                self.add(number)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command line that runs `words` on the head."""
        head = self._started[0].pid
        return ["nsenter", f"--target={head}", "--net", "--mount", "--wd=.", "--", *words]

    def add(self, number: int) -> None:
        """Start a node, and wait until its Ray answers."""
        address = NETWORK.format(number + 1)
        log = FOLDER / f"{number}.log"
        mine = FOLDER / str(number)
        shutil.rmtree(mine, ignore_errors=True)
        mine.mkdir()
        ray = [str(Path(sys.executable).parent / "ray"), "start", "--block"]
        ray += [f"--node-ip-address={address}", f"--object-store-memory={STORE_BYTES}"]
        ray += ["--num-gpus=0", f"--num-cpus={self.cpus if number else 0}"]
        if number:
            ray += [f"--address={self.address}"]
        else:
            ray += ["--head", f"--port={PORT}", "--include-dashboard=false"]
        # Ray keeps the state of its node in /tmp/ray: each node has a folder of its own.
        script = f'mkdir -p /tmp/ray && mount --bind {mine} /tmp/ray && exec "$@"'
        inside = ["ip", "netns", "exec", NAMESPACE.format(number), "unshare", "--mount"]
        with log.open("wb") as output:
            self._started[number] = subprocess.Popen(
                [*inside, "sh", "-c", script, "sh", *ray],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **OPTIONS},
            )
        end = time.monotonic() + START_S
        while "--block" not in log.read_text():  # the last line of its start
            if self._started[number].poll() is not None or time.monotonic() > end:
                raise Failed(f"node {number} did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)

    def kill(self, number: int) -> None:
        """Kill all processes on a node with SIGKILL, at once."""
        kill(number)

    def cut(self, number: int) -> None:
        """Disconnect a node from all others."""
        cut(number)

    def heal(self, number: int) -> None:
        """Connect a node again."""
        heal(number)

    def node_of(self, pid: int) -> int:
        """Return the node that a process runs on.

        Raises:
            Failed: the process is on no node.
        """
        inode = os.stat(f"/proc/{pid}/ns/net").st_ino
        for number in range(self.count + 1):
            if (NAMESPACES / NAMESPACE.format(number)).stat().st_ino == inode:
                return number
        raise Failed(f"process {pid} is on no node")

    def _connect(self, number: int) -> None:
        space, link = NAMESPACE.format(number), LINK.format(number)
        ip("netns", "add", space)
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("link", "set", link, "master", BRIDGE, "up")
        inside = ("-n", space)
        ip(*inside, "address", "add", f"{NETWORK.format(number + 1)}/24", "dev", "eth0")
        ip(*inside, "link", "set", "lo", "up")
        ip(*inside, "link", "set", "eth0", "up")
        # Ray finds its own address by the default route.
        ip(*inside, "route", "add", "default", "via", NETWORK.format(254))

    def _close(self) -> None:
        self._remove()
        for process in self._started.values():
            process.wait(END_S)
        assert self._lock is not None
        os.close(self._lock)

    def _remove(self) -> None:
        """Remove all namespaces with their processes, and the bridge; of earlier clusters too."""
        for space in _spaces():
            _kill_all(space)
        for process in self._started.values():
            process.wait(END_S)
        for space in _spaces():
            ip("netns", "delete", space)
        # The kernel removes the links of a namespace some time after the namespace.
        for link in Path("/sys/class/net").glob(f"{BRIDGE}*"):
            subprocess.run(["ip", "link", "delete", link.name], capture_output=True, check=False)
        for folder in FOLDER.iterdir():
            if folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)


def check_machine() -> None:
    """Refuse a machine on which network namespaces or Ray cannot work.

    Raises:
        Failed: the cause, with the remedy.
    """
    if os.getuid():
        raise Failed("network namespaces need root")
    for program, package in {"ip": "iproute2", "nsenter": "util-linux"}.items():
        if shutil.which(program) is None:
            raise Failed(f"no `{program}` here: apt-get install {package}")
    if not (Path(sys.executable).parent / "ray").exists():
        raise Failed("no Ray beside this Python: pip install 'ray>=2.55,<3'")
    probe = NAMESPACE.format("probe")
    found = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if found.returncode:
        raise Failed(f"this machine makes no network namespaces: {found.stderr.strip()}")
    ip("netns", "delete", probe)


def cut(number: int) -> None:
    ip("link", "set", LINK.format(number), "down")


def heal(number: int) -> None:
    ip("link", "set", LINK.format(number), "up")


def kill(number: int) -> None:
    _kill_all(NAMESPACE.format(number))


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _spaces() -> list[str]:
    mine = NAMESPACE.format("")
    found = NAMESPACES.iterdir() if NAMESPACES.exists() else []
    return sorted(space.name for space in found if space.name.startswith(mine))


def _kill_all(space: str) -> None:
    """Kill processes until none is left: some may just have been started."""
    end = time.monotonic() + END_S
    while pids := list(_pids(space)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            raise Failed(f"{space}: processes {pids} do not end")
        time.sleep(0.02)


def _pids(space: str) -> Iterator[int]:
    done = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True)
    for word in done.stdout.split():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{word}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                yield int(word)


def run(count: int, cpus: int, words: Sequence[str]) -> int:
    """Run a command on the head of a new cluster; return its exit code."""

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    with RayNodes(count, cpus=cpus) as nodes:
        sys.stderr.write(f"ray_nodes.py: {count} nodes and a head at {nodes.address}\n")
        command = subprocess.Popen(
            nodes.command(words), env={**os.environ, "RAY_ADDRESS": nodes.address}
        )
        try:
            return command.wait()
        except KeyboardInterrupt:
            command.send_signal(signal.SIGINT)
            command.wait(60)
            raise


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="start a cluster, run a command on its head, end both")
    runs.add_argument("--nodes", type=int, default=3, help="beside the head (3)")
    runs.add_argument("--cpus", type=int, default=2, help="of each of them (2)")
    runs.add_argument("words", nargs="+", metavar="COMMAND")
    for name, text in {
        "cut": "cut a node off",
        "heal": "connect it again",
        "kill": "kill all that runs on it",
    }.items():
        commands.add_parser(name, help=text).add_argument("node", type=int)
    args = parser.parse_args()
    try:
        if args.command == "run":
            return run(args.nodes, args.cpus, args.words)
        {"cut": cut, "heal": heal, "kill": kill}[args.command](args.node)
    except Failed as error:
        sys.stderr.write(f"ray_nodes.py: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
