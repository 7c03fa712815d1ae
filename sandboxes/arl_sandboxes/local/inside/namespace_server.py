"""The fork server of a slot in namespaces, process 1 there: it also kills what programs leave."""

import json
import os
import resource
import signal
import socket
import sys
import time

import kernel
import priority
import program
import root
import seccomp
import slot_server
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
STRAYS_S = 2.0
"""The time to kill a program's leftovers beside an open session, before everything is killed."""
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


class NamespaceServer(slot_server.SlotServer):
    def __init__(self, control: socket.socket, config: dict, last_pid: int | None) -> None:
        super().__init__(control)
        self._last_pid = last_pid
        self._image = config.get("image")
        if self._image:
            program.load(config["preimport"], config["path"])
            program.set_environment(self._image["env"])
        else:
            program.warm_up(config["preimport"], config["path"])
        self._domain = kernel.memory_domain()
        families = seccomp.WITH_INET if self._image else seccomp.UNIX
        locks.Filter(seccomp.program(without=seccomp.SERVERS, families=families)).install()
        self._filter = locks.Filter(seccomp.only(seccomp.SERVERS))
        self._lasting: set[int] = set()  # numbers of the children that are sessions
        self._has_box = False
        self._had_sessions = False
        self._orphan_cpu_s = 0.0  # of processes whose parents had ended
        self._marks: dict[int, str] = {}  # number -> the UTS namespace of it and its descendants

    def begin(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # for process 1: no process inside can send it
        if not self._image:
            slot_server.settle_memory()
        super().begin()

    def obey(self, message: bytes) -> None:
        command, number = wire.COMMAND.unpack(message)
        if command == wire.LASTING:
            self._lasting.add(number)
            self._had_sessions = True
        elif command == wire.LISTEN:
            self._listen(number)
        else:
            super().obey(message)

    def renew(self, disk_mb: int) -> list[int]:
        self._sweep()
        self._count_from_2()
        slot_server.overwrite_figures()
        if self._has_box:
            assert not self._image, "a sandbox of an image has a slot of its own"
            root.drop_box()
        self._has_box = True
        self._had_sessions = False
        self._lasting.clear()
        self._marks.clear()
        if not self._image:
            return [root.fresh_box(disk_mb)]
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        return [os.open(self._image["work_dir"], flags), os.open("/", flags)]

    def _listen(self, port: int) -> None:
        """Give the host a socket that listens in this network namespace."""
        message = wire.LISTENER + wire.NUMBER.pack(port)
        try:
            listener = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            self.control.send(message + str(error.strerror).encode())
            return
        with listener:
            socket.send_fds(self.control, [message], [listener.fileno()])

    def _count_from_2(self) -> None:
        """Reset the pid counter to 2, so that no program learns how many processes came before."""
        if self._last_pid is not None:
            os.pwrite(self._last_pid, b"1", 0)

    def send_signal(self, pid: int, kind: int) -> None:
        for send, target in ((os.killpg, pid), (os.kill, pid)):
            try:
                send(target, kind)
            except ProcessLookupError:
                continue
            if kind == signal.SIGINT:
                return

    def prepare(self, folders: list[int]) -> None:
        if self._had_sessions:
            kernel.unshare(kernel.CLONE_NEWUTS, "uts")
            self._marks[self._count + 1] = _mark_of("self")
        self._orphan_cpu_s = 0.0
        super().prepare(folders)

    def run_child(self, conn: socket.socket) -> None:
        if self._last_pid is not None:
            os.close(self._last_pid)
        place = self._image["work_dir"] if self._image else root.BOX
        program.main(conn, self._filter, self._domain, place)

    def ended(self, pid: int, status: int, usage: resource.struct_rusage) -> None:
        number = self.children.pop(pid, None)
        killed, cpu_s = 0, 0.0
        if number is None:
            self._orphan_cpu_s += usage.ru_utime + usage.ru_stime
            return
        if number in self._lasting:
            self._lasting.discard(number)
            self.send_signal(pid, signal.SIGKILL)
        else:
            killed, cpu_s = self._end_of_program(number)
        self.report(number, status, usage, killed, cpu_s)

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
                self.send_signal(pid, signal.SIGKILL)
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
            self.children.pop(pid, None)
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


def last_pid() -> int | None:
    """Open the file of the last pid, which applies to the namespace of its writer; return None if
    this kernel has none (CONFIG_CHECKPOINT_RESTORE), or shows it read-only."""
    try:
        return os.open(LAST_PID, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return None


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    config = json.loads(control.recv(wire.CONFIG_BYTES))
    try:
        os.setsid()
        os.umask(0o022)
        slot_server.no_core_dumps()
        lower_group = priority.give_way()
        if not config["ahead"]:
            os.nice(priority.NICE)
        counter = last_pid()  # before the new root, whose /proc shows only processes
        if config["ahead"]:
            # The start of the interpreter takes longer than all else, and is the same for all.
            program.warm_up(config["ahead"], [])
            slot_server.settle_memory()  # now: after a fork it would copy every page of the heap
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
            prompt_s = priority.PROMPT_S if config["ahead"] else 0.0
            priority.watch(first, lower_group, time.monotonic() + prompt_s)
            os._exit(0)
        if os.getpid() != 1:
            raise OSError(f"process {os.getpid()} where process 1 of new namespaces was expected")
        locks.die_with_parent()
        flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC | kernel.MS_RDONLY
        kernel.mount("proc", "/proc", "proc", flags, PROC)
        locks.set_dumpable(False)
        kernel.forgo_capabilities()  # once for all children, which inherit it
        server = NamespaceServer(control, config, counter)
        if config["ahead"]:
            os.nice(priority.NICE)
        server.serve()
    except Exception as error:
        slot_server.report_failure(control, error)
    os._exit(1)
