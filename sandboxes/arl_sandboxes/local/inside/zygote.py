"""Process 1 of a slot: it makes one prepared child after another, and kills their leftovers.

The zygote never sees a byte of the programs: the host talks to each child over a socket of its
own, so no data of an episode is in the memory that later children are copies of.
"""

import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time

import kernel
import outer
import program
import root
import seccomp
import wire

from arl_isolation import locks

INNER = (
    kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWCGROUP
)
PROC = "subset=pid,hidepid=ptraceable"
REAP_AT_ONCE = 64
"""The number of processes reaped before commands are read, so that no flood delays the host."""
STRAYS_S = 2.0
"""The time to kill a program's leftovers beside an open session, before everything is killed."""
_OVERWRITTEN = range(1000, 1256)
"""The numbers to create, more of them than Python keeps in its free lists."""
LAST_PID = "/proc/sys/kernel/ns_last_pid"


def enter_namespaces(config: dict) -> None:
    """Enter user, mount, network, IPC, UTS and cgroup namespaces; the next child is process 1."""
    read_only = [tuple(pair) for pair in config["read_only"]]
    unseen = config["hidden"]
    # The new root is made as the machine's root if possible: folders like /root are closed to
    # others. Root in a container may not mount before it has a user namespace.
    at_once = os.getuid() == 0 and kernel.may_mount()
    image = config.get("image")

    def build(owner: int | None) -> None:
        if image:
            root.build_of_image(read_only, unseen, image, owner)
        else:
            root.build(read_only, unseen)

    if at_once:
        kernel.unshare(kernel.CLONE_NEWNS, "mount")
        build(config["host_uid"])
    enter_user_namespace(config["host_uid"])
    kernel.unshare(INNER | kernel.CLONE_NEWNS, "mount, pid, net, ipc, uts, cgroup")
    kernel.set_host_name("sandbox")
    if image:
        kernel.loopback_up()
    if not at_once:
        build(None)
    # The machine's /proc, which must exist before a namespace can mount its own over it.
    kernel.make_read_only("/proc")


def enter_user_namespace(host_uid: int) -> None:
    """Become uid 0 of a namespace; on the machine it is `host_uid` for root, else the same user."""
    uid, gid = os.getuid(), os.getgid()
    if uid:
        kernel.unshare(kernel.CLONE_NEWUSER, "user")
        map_self(uid, gid)
        return
    os.setgroups([])
    with MapsFromOutside(host_uid):
        kernel.unshare(kernel.CLONE_NEWUSER, "user")
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def map_self(uid: int, gid: int) -> None:
    """Map a plain user to 0 inside, which it may do for itself only."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


class MapsFromOutside:
    """A uid map written by an outside helper: only it may map a uid of root's slots."""

    def __init__(self, host_uid: int) -> None:
        self._host_uid = host_uid

    def __enter__(self) -> None:
        read, self._go = os.pipe()
        me = os.getpid()
        self._helper = os.fork()
        if self._helper:
            os.close(read)
            return
        os.close(self._go)
        if os.read(read, 1):
            for name in ("uid_map", "gid_map"):
                with open(f"/proc/{me}/{name}", "w") as file:
                    file.write(f"0 {self._host_uid} 1")
        os._exit(0)

    def __exit__(self, kind: object, error: object, at: object) -> None:
        if kind is None:
            os.write(self._go, b"x")
        os.close(self._go)
        _, status = os.waitpid(self._helper, 0)
        if kind is None and status:
            raise OSError(f"the uid map could not be written (helper status {status})")


class Zygote:
    def __init__(self, control: socket.socket, config: dict, last_pid: int | None) -> None:
        self._control, self._last_pid = control, last_pid
        self._image = config.get("image")
        if self._image:
            program.load(config["preimport"], config["path"])
            program.set_environment(self._image["env"])
        else:
            program.warm_up(config["preimport"], config["path"])
        self._domain = kernel.memory_domain()
        families = seccomp.WITH_INET if self._image else seccomp.UNIX
        locks.Filter(seccomp.program(without=seccomp.ZYGOTES, families=families)).install()
        self._filter = locks.Filter(seccomp.only(seccomp.ZYGOTES))
        self._children: dict[int, int] = {}  # pid -> its number
        self._lasting: set[int] = set()  # numbers of the children that are sessions
        self._count = 0
        self._has_box = False
        self._had_sessions = False
        self._orphan_cpu_s = 0.0  # of processes whose parents had ended
        self._marks: dict[int, str] = {}  # number -> the UTS namespace of it and its descendants

    def run(self) -> None:
        """Serve the host until it closes the socket."""
        woken, wake = socket.socketpair()
        for end in (woken, wake):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # for process 1: no process inside can send it
        self._own = {woken.fileno(), wake.fileno()}
        if not self._image:
            settle_memory()
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(woken, select.POLLIN)
        self._control.send(wire.READY)
        more = False
        while True:
            for fd, _ in sorted(
                poll.poll(0 if more else None), key=lambda pair: pair[0] != self._control.fileno()
            ):
                if fd == self._control.fileno():
                    if not self._obey(self._control.recv(wire.COMMAND_BYTES)):
                        return
                else:
                    woken.recv(4096)
            more = self._reap()

    def _obey(self, message: bytes) -> bool:
        if not message:
            return False
        command, number = wire.COMMAND.unpack(message)
        if command == wire.FRESH:
            self._sweep()
            self._count_from_2()
            overwrite_figures()
            if self._has_box:
                assert not self._image, "a sandbox of an image has a slot of its own"
                root.drop_box()
            self._has_box = True
            self._had_sessions = False
            self._lasting.clear()
            self._marks.clear()
            self._prepare(self._folders(number))
        elif command == wire.ANOTHER:
            self._prepare([])
        elif command == wire.LASTING:
            self._lasting.add(number)
            self._had_sessions = True
        elif command == wire.LISTEN:
            self._listen(number)
        elif command in (wire.KILL, wire.INTERRUPT):
            kind = signal.SIGKILL if command == wire.KILL else signal.SIGINT
            for pid, child in self._children.items():
                if child == number:
                    self._signal(pid, kind)
        return True

    def _listen(self, port: int) -> None:
        """Give the host a socket that listens in this network namespace."""
        message = wire.LISTENER + wire.NUMBER.pack(port)
        try:
            listener = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            self._control.send(message + str(error.strerror).encode())
            return
        with listener:
            socket.send_fds(self._control, [message], [listener.fileno()])

    def _count_from_2(self) -> None:
        """Reset the pid counter to 2, so that no program learns how many processes came before."""
        if self._last_pid is not None:
            os.pwrite(self._last_pid, b"1", 0)

    @staticmethod
    def _signal(pid: int, kind: int) -> None:
        for send, target in ((os.killpg, pid), (os.kill, pid)):
            try:
                send(target, kind)
            except ProcessLookupError:
                continue
            if kind == signal.SIGINT:
                return

    def _folders(self, disk_mb: int) -> list[int]:
        """Return the handles of a new work folder, or of the image's and its root."""
        if not self._image:
            return [root.fresh_box(disk_mb)]
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        return [os.open(self._image["work_dir"], flags), os.open("/", flags)]

    def _prepare(self, folders: list[int]) -> None:
        """Fork the next child, which prepares itself and waits for its program."""
        mine, theirs = socket.socketpair()
        self._count += 1
        if self._had_sessions:
            kernel.unshare(kernel.CLONE_NEWUTS, "uts")
            self._marks[self._count] = _mark_of("self")
        self._orphan_cpu_s = 0.0
        pid = kernel.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                for fd in (self._control.fileno(), mine.fileno(), *self._own):
                    os.close(fd)
                if self._last_pid is not None:
                    os.close(self._last_pid)
                for folder in folders:
                    os.close(folder)
                place = self._image["work_dir"] if self._image else root.BOX
                program.main(theirs, self._filter, self._domain, place)
            except BaseException as error:
                program.give_up(theirs, error)
            os._exit(125)
        theirs.close()
        self._children[pid] = self._count
        message = wire.CHILD + wire.NUMBER.pack(self._count)
        socket.send_fds(self._control, [message], [mine.fileno(), *folders])
        mine.close()
        for folder in folders:
            os.close(folder)

    def _reap(self) -> bool:
        """Reap dead processes and report the known ones; return True if there may be more."""
        for _ in range(REAP_AT_ONCE):
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return False
            number = self._children.pop(pid, None)
            if number is None:
                self._orphan_cpu_s += usage.ru_utime + usage.ru_stime
                continue
            cpu_s = usage.ru_utime + usage.ru_stime
            killed = 0
            if number in self._lasting:
                self._lasting.discard(number)
                self._signal(pid, signal.SIGKILL)
            else:
                killed, more = self._end_of_program(number)
                cpu_s += more
            done = wire.DONE_BODY.pack(number, status, killed, cpu_s, usage.ru_maxrss)
            self._control.send(wire.DONE + done)
        return True

    def _end_of_program(self, number: int) -> tuple[int, float]:
        """Kill a program's leftovers: all processes, or beside sessions those with its mark."""
        mark = self._marks.pop(number, "")
        if not mark:  # no session was open at its start: every process is its own
            number_killed, cpu_s = self._sweep()
            return number_killed, cpu_s + self._orphan_cpu_s
        killed: set[int] = set()
        until = time.monotonic() + STRAYS_S
        while strays := [pid for pid in _processes() if _mark_of(pid) == mark]:
            killed.update(strays)
            for pid in strays:
                self._signal(pid, signal.SIGKILL)
            if time.monotonic() > until:
                return self._sweep()  # they fork faster than this; the sessions are killed, too
        return len(killed), 0.0

    def _sweep(self) -> tuple[int, float]:
        """Kill every process of the slot; return their number and their CPU seconds."""
        try:
            os.kill(-1, signal.SIGKILL)  # to all but this one, at once: none can fork away
        except ProcessLookupError:
            return 0, 0.0
        killed, cpu_s = 0, 0.0
        while True:
            try:
                pid, status, usage = os.wait4(-1, 0)
            except ChildProcessError:
                self._lasting.clear()
                return killed, cpu_s
            self._children.pop(pid, None)
            killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            cpu_s += usage.ru_utime + usage.ru_stime


def _processes() -> list[int]:
    """Return the pids of all processes but this one."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def _mark_of(pid: int | str) -> str:
    """Return the process's UTS namespace, which no program can change; "" if it is dead."""
    try:
        return os.readlink(f"/proc/{pid}/ns/uts")
    except OSError:
        return ""


def settle_memory() -> None:
    """Collect garbage for the last time, so that children share the memory of what is left."""
    gc.collect()
    gc.freeze()
    gc.disable()


def overwrite_figures() -> None:
    """Overwrite the memory of freed numbers and bytes, in which the next child, a copy of this
    process, would otherwise find the CPU seconds that a program has used."""
    for make in (float, int, lambda number: bytes(number % 64)):
        kept = [make(number) for number in _OVERWRITTEN]
        del kept


def last_pid() -> int | None:
    """Open the file of the last pid, which applies to the namespace of its writer; return None if
    this kernel has none (CONFIG_CHECKPOINT_RESTORE), or shows it read-only."""
    try:
        return os.open(LAST_PID, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return None


def no_core_dumps() -> None:
    """Prevent core dumps, also those to a program of the machine (`kernel.core_pattern` with "|").

    A limit of 1 byte works for both kinds: https://man7.org/linux/man-pages/man5/core.5.html says
    that a pipe ignores the limit, and the kernel's fs/coredump.c makes 1 an exception.
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    value = 1 if hard else 0
    resource.setrlimit(resource.RLIMIT_CORE, (value, value))


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    config = json.loads(control.recv(wire.CONFIG_BYTES))
    try:
        os.setsid()
        os.umask(0o022)
        no_core_dumps()
        lower_group = outer.give_way()
        if not config["ahead"]:
            os.nice(outer.NICE)
        counter = last_pid()  # before the new root, whose /proc shows only processes
        if config["ahead"]:
            # The start of the interpreter takes longer than all else, and is the same for all.
            program.warm_up(config["ahead"], [])
            settle_memory()  # now: after a fork it would copy every page of the heap
            control.send(wire.AHEAD)
            order = control.recv(wire.CONFIG_BYTES)
            if not order:
                os._exit(0)
            config |= json.loads(order)
        enter_namespaces(config)
        first = os.fork()
        if first:
            control.close()
            locks.die_with_parent()
            outer.watch(
                first, lower_group, time.monotonic() + (outer.PROMPT_S if config["ahead"] else 0)
            )
            os._exit(0)
        if os.getpid() != 1:
            raise OSError(f"process {os.getpid()} where process 1 of new namespaces was expected")
        locks.die_with_parent()
        flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC | kernel.MS_RDONLY
        kernel.mount("proc", "/proc", "proc", flags, PROC)
        locks.set_dumpable(False)
        kernel.forgo_capabilities()  # once for all children, which inherit it
        zygote = Zygote(control, config, counter)
        if config["ahead"]:
            os.nice(outer.NICE)
        zygote.run()
    except Exception as error:
        number = struct.pack("i", getattr(error, "errno", 0) or 0)
        text = f"{type(error).__name__}: {error}"
        control.send(wire.FAILED + number + text.encode("utf-8", "replace")[:4000])
    os._exit(1)
