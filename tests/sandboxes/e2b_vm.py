"""What stands in for a virtual machine under the E2B fake: namespaces on the test machine.

    python3 -I -S e2b_vm.py KERNEL_MODULE HOST_UID     run by `Vm`, as root

The commands that the SDK sends run for real, as processes of this machine, in user, pid, mount,
network, IPC and host-name namespaces of their own, with a root of their own in memory. It is no
sandbox to be trusted: no limits, no filter, devices by bind. Tests send harmless programs.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
KERNEL = ROOT / "sandboxes/arl_sandboxes/local/inside/kernel.py"
NUM_UIDS = 65536
FIRST_HOST_UID = 500_000_000
"""Far from everybody else's; a range for each machine, so that process limits count apart."""
MAX_PROCESSES = 300
"""Of each user of a machine."""
_ranges = itertools.count(os.getpid() % 10_000)
_SHARED = ("/usr",)
_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
_USERS = "root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n"
_FOLDERS = ("etc", "proc", "dev/shm", "tmp", "opt", "mnt", "root", "home/user", "old")
_DEVICES = ("null", "zero", "full", "random", "urandom")


def why_not() -> str:
    """Why no machine can be made here; "" if it can."""
    if os.getuid() != 0:
        return "the fake's machines need root (they map a range of users)"
    done = subprocess.run(["unshare", "-Upmf", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else f"no namespaces: {done.stderr.decode().strip()}"


class Vm:
    """One machine, from outside."""

    def __init__(self) -> None:
        host_uid = FIRST_HOST_UID + NUM_UIDS * (next(_ranges) % 20_000)
        command = [sys.executable, "-I", "-S", __file__, str(KERNEL), str(host_uid)]
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `kill`)
        self._keeper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log
        )
        assert self._keeper.stdout is not None
        said = self._keeper.stdout.readline()
        if not said.strip().isdigit():
            self.log.seek(0)
            raise RuntimeError(f"the machine did not start: {self.log.read().decode()}")
        self.init = int(said)
        self._space = os.readlink(f"/proc/{self.init}/ns/user")

    def command(self, argv: list[str], *, user: str, cwd: str) -> list[str]:
        """The command line that runs `argv` in it."""
        uid = "0" if user == "root" else "1000"
        bound = ["prlimit", f"--nproc={MAX_PROCESSES}"]  # what the machine's own kernel would bound
        enter = [*bound, "nsenter", "-t", str(self.init), "-U", "-m", "-p", "-n", "-i", "-u"]
        shell = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', cwd]
        return [*enter, "-S", uid, "-G", uid, *shell, *argv]

    def processes(self) -> list[str]:
        """Command lines of all that run in it."""
        found = []
        for entry in os.scandir("/proc"):
            try:
                if entry.name.isdigit() and os.readlink(f"{entry.path}/ns/user") == self._space:
                    found.append(Path(f"{entry.path}/cmdline").read_bytes().decode())
            except OSError:
                continue  # it has ended
        return found

    def kill(self) -> None:
        """All of it, at once: its first process takes the others along."""
        if self._keeper.poll() is None:
            os.kill(self.init, signal.SIGKILL)
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.wait(10)
        self._keeper.stdin.close()
        self._keeper.stdout.close()
        self.log.close()


# ---------------------------------------------------------------------- inside
def main() -> None:
    sys.path.append(str(ROOT))
    from arl_isolation import locks

    spec = importlib.util.spec_from_file_location("kernel", sys.argv[1])
    assert spec is not None
    assert spec.loader is not None
    kernel = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernel)
    locks.die_with_parent()
    _become_root_of_nobody(kernel, int(sys.argv[2]))
    spaces = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET
    kernel.unshare(spaces | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS, "machine")
    _build(kernel)
    init = os.fork()
    if init == 0:
        locks.die_with_parent()
        kernel.mount("proc", "/proc", "proc", 0)
        _serve()
    print(init, flush=True)
    os.close(0)
    os.close(1)
    os.waitpid(init, 0)


def _become_root_of_nobody(kernel, host_uid: int) -> None:
    """Root in a new user namespace; its users are none of the machine's."""
    me = os.getpid()
    wait, go = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(go)
        os.read(wait, 1)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{me}/{name}").write_text(f"0 {host_uid} {NUM_UIDS}")
        os._exit(0)
    kernel.unshare(kernel.CLONE_NEWUSER, "user")
    os.close(go)
    os.waitpid(helper, 0)
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _build(kernel) -> None:
    """An empty root in memory, with the programs of the test machine in it, read-only."""
    stage = "/sys"
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", stage, "tmpfs", 0, "size=64m,mode=755")
    for folder in _FOLDERS:
        os.makedirs(f"{stage}/{folder}")
    os.chmod(f"{stage}/tmp", 0o1777)
    os.chmod(f"{stage}/root", 0o700)
    os.chmod(f"{stage}/dev/shm", 0o1777)
    os.chown(f"{stage}/home/user", 1000, 1000)
    for name, target in _LINKS.items():
        os.symlink(target, f"{stage}/{name}")
    for folder in _SHARED:
        os.makedirs(stage + folder, exist_ok=True)
        kernel.mount(folder, stage + folder, "", kernel.MS_BIND | kernel.MS_REC)
        kernel.make_read_only(stage + folder)
    Path(f"{stage}/etc/passwd").write_text(_USERS)
    for name in _DEVICES:
        Path(f"{stage}/dev/{name}").touch()
        kernel.mount(f"/dev/{name}", f"{stage}/dev/{name}", "", kernel.MS_BIND)
    kernel.mount("/proc", f"{stage}/proc", "", kernel.MS_BIND | kernel.MS_REC)
    os.chdir(stage)
    kernel.pivot_root(".", "old")
    kernel.unmount("/old", kernel.MNT_DETACH)
    os.rmdir("/old")
    os.chdir("/")


def _serve() -> None:
    """Process 1: reaps, until the test that made the machine is gone."""
    while not select.select([0], [], [], 0.05)[0]:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
    os._exit(0)


if __name__ == "__main__":
    main()
