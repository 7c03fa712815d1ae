"""The fork server of a slot: it makes one prepared child after another.

It never sees a byte of the programs: the host talks to each child over a socket of its own, so no
data of an episode is in the memory that later children are copies of.
"""

import gc
import os
import resource
import signal
import socket
import struct

import kernel
import program
import wire

from arl_isolation import forks

_OVERWRITTEN = range(1000, 1256)
"""The numbers to create, more of them than Python keeps in its free lists."""


class SlotServer(forks.Server):
    """A fork server that the host commands as `wire` describes it."""

    message_bytes = wire.COMMAND_BYTES

    def __init__(self, control: socket.socket) -> None:
        super().__init__(control)
        self._count = 0

    def begin(self) -> None:
        self.control.send(wire.READY)

    def obey(self, message: bytes) -> None:
        command, number = wire.COMMAND.unpack(message)
        if command == wire.FRESH:
            self.prepare(self.renew(number))
        elif command == wire.ANOTHER:
            self.prepare([])
        elif command in (wire.KILL, wire.INTERRUPT):
            kind = signal.SIGKILL if command == wire.KILL else signal.SIGINT
            for pid, child in self.children.items():
                if child == number:
                    self.send_signal(pid, kind)

    def renew(self, disk_mb: int) -> list[int]:
        """End every program and make a work folder; return the handles that the host gets."""
        raise NotImplementedError

    def send_signal(self, pid: int, kind: int) -> None:
        """Send a signal to a child's program."""
        raise NotImplementedError

    def run_child(self, conn: socket.socket) -> None:
        """Run the child: see `program.main`."""
        raise NotImplementedError

    def prepare(self, folders: list[int]) -> None:
        """Fork the next child, which prepares itself and waits for its program."""
        mine, theirs = socket.socketpair()
        self._count += 1
        pid = kernel.fork()
        if pid == 0:
            try:
                self.leave()
                mine.close()
                for folder in folders:
                    os.close(folder)
                self.run_child(theirs)
            except BaseException as error:
                program.give_up(theirs, error)
            os._exit(125)
        theirs.close()
        self.children[pid] = self._count
        message = wire.CHILD + wire.NUMBER.pack(self._count)
        socket.send_fds(self.control, [message], [mine.fileno(), *folders])
        mine.close()
        for folder in folders:
            os.close(folder)

    def report(
        self, number: int, status: int, usage: resource.struct_rusage, killed: int, cpu_s: float
    ) -> None:
        """Report a child's end; `killed`, `cpu_s`: the processes it left, and their CPU time."""
        cpu_s += usage.ru_utime + usage.ru_stime
        done = wire.DONE_BODY.pack(number, status, killed, cpu_s, usage.ru_maxrss)
        self.control.send(wire.DONE + done)


def settle_memory() -> None:
    """Collect garbage for the last time, so that children share the memory of what is left."""
    forks.settle_memory()
    gc.disable()


def overwrite_figures() -> None:
    """Overwrite the memory of freed numbers and bytes, in which the next child, a copy of this
    process, would otherwise find the CPU seconds that a program has used."""
    for make in (float, int, lambda number: bytes(number % 64)):
        kept = [make(number) for number in _OVERWRITTEN]
        del kept


def no_core_dumps() -> None:
    """Prevent core dumps, also those to a program of the machine (`kernel.core_pattern` with "|").

    A limit of 1 byte works for both kinds: https://man7.org/linux/man-pages/man5/core.5.html says
    that a pipe ignores the limit, and the kernel's fs/coredump.c makes 1 an exception.
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    value = 1 if hard else 0
    resource.setrlimit(resource.RLIMIT_CORE, (value, value))


def report_failure(control: socket.socket, error: Exception) -> None:
    """Report to the host the reason why the slot did not start."""
    number = struct.pack("i", getattr(error, "errno", 0) or 0)
    text = f"{type(error).__name__}: {error}"
    control.send(wire.FAILED + number + text.encode("utf-8", "replace")[:4000])
