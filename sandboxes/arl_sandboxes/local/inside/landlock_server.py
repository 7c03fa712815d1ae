"""The fork server of a slot without namespaces, whose children are its only processes.

None of them can start another, so each is ended by its pid. All processes of the machine are
visible here, so no signal may ever be sent to -1 or to a group.
"""

import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable

import landlock
import landlock_seccomp
import priority
import program
import root
import slot_server
import wire
import work_folders

from arl_isolation import locks

TIDY_AT_ONCE = 512
"""The entries of an old work folder removed before the next program; the rest goes beside it."""
_REMOVER_NICE = 10


class LandlockServer(slot_server.SlotServer):
    def __init__(self, control: socket.socket, config: dict, folder: work_folders.Folder) -> None:
        super().__init__(control)
        self._pid = os.getpid()
        self._folder = folder
        self._tmp: str = config["tmp"]
        self._uid: int | None = config["host_uid"] if os.getuid() == 0 else None
        self._read = readable(config)
        path = [folder.path + where for where in config["path"]]
        for source, target in config["read_only"]:
            if _is_package(target):
                folder.show(source, os.path.basename(target))
        program.warm_up(config["preimport"], path)
        self._read += path
        packages = [source for source, target in config["read_only"] if _is_package(target)]
        landlock.veil(config["hidden"], [*packages, folder.path])
        os.environ.update(HOME=folder.box, TMPDIR=folder.box)
        landlock_seccomp.program(1)  # so that the children find most of it cached
        self._domain = -1
        self._remover = 0

    # ------------------------------------------------------------------ life
    def begin(self) -> None:
        signal.signal(signal.SIGTERM, self._terminated)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        locks.die_with_parent(number=signal.SIGTERM)
        slot_server.settle_memory()
        if any(work_folders.leftovers(self._tmp)):
            self._beside(lambda: work_folders.sweep(self._tmp))
        super().begin()

    def _terminated(self, *_: object) -> None:
        self.over = True

    def end(self) -> None:
        """End every process and remove every file. Idempotent."""
        self._end_programs()
        if self._remover:
            os.kill(self._remover, signal.SIGKILL)
            os.waitpid(self._remover, 0)
            self._remover = 0
        self._folder.remove()

    # ------------------------------------------------------------------ commands
    def renew(self, disk_mb: int) -> list[int]:
        self._end_programs()
        slot_server.overwrite_figures()
        box = self._folder.renew()
        if self._domain >= 0:
            os.close(self._domain)
        self._domain = landlock.make(self._read, box)
        return [box]

    def prepare(self, folders: list[int]) -> None:
        super().prepare(folders)
        if folders and not self._remover and not self._folder.tidy(TIDY_AT_ONCE):
            self._beside(self._folder.tidy)

    def send_signal(self, pid: int, kind: int) -> None:
        os.kill(pid, kind)

    def _end_programs(self) -> None:
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)  # not reaped yet: the pid is still its own
        for pid in self.children:
            os.waitpid(pid, 0)
        self.children.clear()

    def run_child(self, conn: socket.socket) -> None:
        for handle in self._folder.handles():
            os.close(handle)
        become(self._uid, self._pid)
        own_filter = locks.Filter(landlock_seccomp.program(os.getpid()))
        program.main(conn, own_filter, self._domain, self._folder.box)

    def leave(self) -> None:
        super().leave()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _beside(self, work: Callable[[], object]) -> None:
        """Run `work` in a separate process without waiting for its end, as a removal may take
        long."""
        self._remover = os.fork()
        if self._remover == 0:
            status = 1
            try:
                self.leave()
                locks.die_with_parent()
                os.nice(_REMOVER_NICE)
                work()
                status = 0
            finally:  # its leftovers are removed when the slot ends
                os._exit(status)

    def ended(self, pid: int, status: int, usage: resource.struct_rusage) -> None:
        if pid == self._remover:
            self._remover = 0
        else:
            self.report(self.children.pop(pid), status, usage, 0, 0.0)


def readable(config: dict) -> list[str]:
    """Return the folders that programs may read, with /lib for the loader unless it is a link."""
    libraries = [path for path in ("/lib", "/lib64") if not os.path.islink(path)]
    return [source for source, _ in config["read_only"]] + libraries


def _is_package(target: str) -> bool:
    return target.startswith(root.PACKAGES + "/")


def become(uid: int | None, parent: int) -> None:
    """Change to the programs' user, if this is root; arrange to end with `parent`.

    Raises:
        OSError: this root user may not do it.
    """
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    locks.die_with_parent(parent)  # a change of uid resets it


def main() -> None:
    if sys.argv[1] == "sweep":
        work_folders.sweep(sys.argv[2])
        return
    control = socket.socket(fileno=int(sys.argv[1]))
    config = json.loads(control.recv(wire.CONFIG_BYTES))
    status = 1
    server = folder = None
    try:
        os.setpgid(0, 0)  # not setsid: in the host's session nice needs no change of an autogroup
        os.nice(priority.NICE)
        os.umask(0o022)
        slot_server.no_core_dumps()
        locks.no_new_privileges()
        locks.set_dumpable(False)
        locks.landlock_version()
        folder = work_folders.Folder(
            config["tmp"], config["host_uid"] if os.getuid() == 0 else None
        )
        server = LandlockServer(control, config, folder)
        server.serve()
        status = 0
    except Exception as error:
        slot_server.report_failure(control, error)
    finally:
        if server is not None:
            server.end()
        elif folder is not None:
            folder.remove()
    os._exit(status)
