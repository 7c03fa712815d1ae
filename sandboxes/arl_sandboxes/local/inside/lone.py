"""The launcher of a slot without namespaces: one prepared child after another.

The launcher never sees a byte of the programs, like zygote.py, and its children are its only
processes. None of them can start another, so each is ended by its pid. All processes of the machine
are visible here, so no signal may ever be sent to -1 or to a group.
"""

import gc
import json
import os
import select
import signal
import socket
import struct
import sys

import alone
import boxes
import kernel
import landlock
import outer
import program
import root
import wire
import zygote

from arl_isolation import locks

TIDY_AT_ONCE = 512
"""The entries of an old work folder removed before the next program; the rest goes beside it."""
_REMOVER_NICE = 10


class Lone:
    def __init__(self, control: socket.socket, config: dict, folder: boxes.Folder) -> None:
        self._control = control
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
        asked = [source for source, target in config["read_only"] if _is_package(target)]
        landlock.veil(config["hidden"], [*asked, folder.path])
        os.environ.update(HOME=folder.box, TMPDIR=folder.box)
        alone.program(1)  # so that the children find most of it cached
        self._children: dict[int, int] = {}  # pid -> number
        self._count = 0
        self._domain = -1
        self._remover = 0
        self._over = False

    # ------------------------------------------------------------------ life
    def run(self) -> None:
        """Serve the host until it closes the socket, or dies."""
        woken, wake = socket.socketpair()
        for end in (woken, wake):
            end.setblocking(False)
        self._own = {woken.fileno(), wake.fileno(), *self._folder.handles()}
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._terminated)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        locks.die_with_parent(number=signal.SIGTERM)
        gc.collect()
        gc.freeze()
        gc.disable()
        if any(boxes.leftovers(self._tmp)):
            self._beside(lambda: boxes.sweep(self._tmp))
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(woken, select.POLLIN)
        self._control.send(wire.READY)
        while not self._over:
            for fd, _ in poll.poll():
                if fd == woken.fileno():
                    woken.recv(4096)
                elif not self._obey(self._control.recv(wire.COMMAND_BYTES)):
                    return
            self._reap()

    def _terminated(self, *_: object) -> None:
        self._over = True

    def end(self) -> None:
        """End every process and remove every file. Idempotent."""
        self._end_programs()
        if self._remover:
            os.kill(self._remover, signal.SIGKILL)
            os.waitpid(self._remover, 0)
            self._remover = 0
        self._folder.remove()

    # ------------------------------------------------------------------ commands
    def _obey(self, message: bytes) -> bool:
        if not message:
            return False
        command, number = wire.COMMAND.unpack(message)
        if command == wire.FRESH:
            self._fresh()
        elif command == wire.ANOTHER:
            self._prepare(box=None)
        elif command in (wire.KILL, wire.INTERRUPT):
            kind = signal.SIGKILL if command == wire.KILL else signal.SIGINT
            for pid, child in self._children.items():
                if child == number:
                    os.kill(pid, kind)
        return True

    def _fresh(self) -> None:
        """End every program, and make an empty work folder."""
        self._end_programs()
        zygote.overwrite_figures()
        box = self._folder.renew()
        if self._domain >= 0:
            os.close(self._domain)
        self._domain = landlock.make(self._read, box)
        self._prepare(box)
        if not self._remover and not self._folder.tidy(TIDY_AT_ONCE):
            self._beside(self._folder.tidy)

    def _end_programs(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)  # not reaped yet: the pid is still its own
        for pid in self._children:
            os.waitpid(pid, 0)
        self._children.clear()

    def _prepare(self, box: int | None) -> None:
        """Fork the next child, which prepares itself and waits for its program."""
        mine, theirs = socket.socketpair()
        self._count += 1
        launcher = os.getpid()
        pid = kernel.fork()
        if pid == 0:
            try:
                self._leave(mine, box)
                become(self._uid, launcher)
                own_filter = locks.Filter(alone.program(os.getpid()))
                program.main(theirs, own_filter, self._domain, self._folder.box)
            except BaseException as error:
                program.give_up(theirs, error)
            os._exit(125)
        theirs.close()
        self._children[pid] = self._count
        handles = [mine.fileno()] if box is None else [mine.fileno(), box]
        message = wire.CHILD + wire.NUMBER.pack(self._count)
        socket.send_fds(self._control, [message], handles)
        mine.close()
        if box is not None:
            os.close(box)

    def _leave(self, mine: socket.socket, box: int | None) -> None:
        """Close what a child must not inherit from this process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for fd in (self._control.fileno(), mine.fileno(), *self._own):
            os.close(fd)
        if box is not None:
            os.close(box)

    def _beside(self, work) -> None:
        """Run `work` in a separate process without waiting for its end, as a removal may take
        long."""
        self._remover = os.fork()
        if self._remover == 0:
            status = 1
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                locks.die_with_parent()
                self._control.close()
                os.nice(_REMOVER_NICE)
                work()
                status = 0
            finally:  # its leftovers are removed when the slot ends
                os._exit(status)

    def _reap(self) -> None:
        """Reap dead children, and report them to the host."""
        while self._children or self._remover:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if not pid:
                return
            if pid == self._remover:
                self._remover = 0
                continue
            number = self._children.pop(pid)
            cpu_s = usage.ru_utime + usage.ru_stime
            done = wire.DONE_BODY.pack(number, status, 0, cpu_s, usage.ru_maxrss)
            self._control.send(wire.DONE + done)


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
        boxes.sweep(sys.argv[2])
        return
    control = socket.socket(fileno=int(sys.argv[1]))
    config = json.loads(control.recv(wire.CONFIG_BYTES))
    status = 1
    slot = folder = None
    try:
        os.setpgid(0, 0)  # not setsid: in the host's session nice needs no change of an autogroup
        os.nice(outer.NICE)
        os.umask(0o022)
        zygote.no_core_dumps()
        locks.no_new_privileges()
        locks.set_dumpable(False)
        locks.landlock_version()
        folder = boxes.Folder(config["tmp"], config["host_uid"] if os.getuid() == 0 else None)
        slot = Lone(control, config, folder)
        slot.run()
        status = 0
    except Exception as error:
        number = struct.pack("i", getattr(error, "errno", 0) or 0)
        text = f"{type(error).__name__}: {error}"
        control.send(wire.FAILED + number + text.encode("utf-8", "replace")[:4000])
    finally:
        if slot is not None:
            slot.end()
        elif folder is not None:
            folder.remove()
    os._exit(status)
