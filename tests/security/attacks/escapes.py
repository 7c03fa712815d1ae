"""Getting out: system calls, namespaces, devices, privileges, networks, what is read-only."""

import asyncio
import os
import socket

import pytest_free as must
from arena import PWNED, Case, all_are, attack, described

from agentgym_rl.gym.sandbox_records import Status

REFUSED = {"EPERM", "EACCES", "EROFS", "ENOENT", "EINVAL", "ENOTDIR", "EISDIR", "EBUSY"}


async def all_refused(case: Case, code: str, allowed: set[str] = REFUSED) -> None:
    await all_are(case, code, allowed)


@attack(landlock=True)
async def every_denied_system_call(case: Case) -> None:
    """Straight, without the C library; the numbers are compared with the headers elsewhere."""
    from arl_sandboxes.local.inside import syscalls

    from arl_isolation.bpf import MACHINES, NUMBERS

    column, _ = MACHINES[case.arena.machine]
    calls = {name: NUMBERS[name][column] for name in syscalls.DENIED}
    listed = {name: number for name, number in calls.items() if number is not None}
    code = f"for name, number in {listed!r}.items(): S(name, number, 0, 0, 0, 0, 0)"
    if not case.in_container:
        await all_refused(case, code, {"EPERM"})
        return
    from arl_sandboxes.docker.seccomp import DOMAINS

    said = await case.tries(code)
    assert {what for name, what in said.items() if name not in DOMAINS} <= {"EPERM", "ENOSYS"}, said


@attack(landlock=True)
async def system_calls_nobody_has_looked_at(case: Case) -> None:
    code = "for number in [*range(463, 620), 1000, 0x3fffffff]: S(str(number), number)"
    await all_refused(case, code, {"ENOSYS"})


@attack(landlock=True)
async def new_namespaces(case: Case) -> None:
    code = """
clone = 56 if os.uname().machine == "x86_64" else 220
for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    S(hex(flag), clone, flag | 17, 0, 0, 0, 0)
    T(f"unshare {flag:x}", lambda: libc_unshare(flag))
"""
    define = """
def libc_unshare(flag):
    if libc.unshare(flag) < 0: raise OSError(ctypes.get_errno(), "x")
"""
    await all_refused(case, define + code, {"EPERM"})
    said = await case.tries('S("clone3", 435, 0, 0)')
    assert said == {"clone3": "ENOSYS"}


STUB = """
import mmap
page = mmap.mmap(-1, 4096, prot=7, flags=0x22)
page.write(bytes.fromhex({code!r}))
ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
print("went on")
"""


async def killed_by_the_filter(case: Case, machine_code: str) -> None:
    if case.arena.machine != "x86_64":
        return
    result = await case.run(STUB.format(code=machine_code))
    assert (result.status, result.signal) == (Status.ERROR, 31), described(result)  # SIGSYS
    assert b"went on" not in result.stdout


@attack(landlock=True)
async def a_32_bit_system_call(case: Case) -> None:
    await killed_by_the_filter(case, "b814000000cd80c3")  # mov eax, 20 (getpid); int 0x80; ret


@attack(landlock=True)
async def a_32_bit_socketcall(case: Case) -> None:
    """Its one system call for all of sockets would pass a filter that knows 64-bit numbers only."""
    await killed_by_the_filter(case, "b866000000bb01000000cd80c3")


@attack(landlock=True)
async def an_x32_system_call(case: Case) -> None:
    await killed_by_the_filter(case, "b8270000400f05c3")  # mov eax, 0x40000000 | 39; syscall


@attack(landlock=True)
async def a_sysenter(case: Case) -> None:
    if case.arena.machine != "x86_64":
        return
    result = await case.run(STUB.format(code="b814000000 0f34 c3".replace(" ", "")))
    assert result.status is Status.ERROR, described(result)
    assert b"went on" not in result.stdout


@attack()
async def odd_sockets(case: Case) -> None:
    """VSOCK, NETLINK, PACKET, ALG, BLUETOOTH, XDP and the rest, alone and in pairs."""
    code = """
def pair(family, kind):
    out = (ctypes.c_int * 2)()
    if libc.socketpair(family, kind, 0, out) < 0: raise OSError(ctypes.get_errno(), "x")
for family in range(64):
    if family not in (1, 2, 10):
        for kind in (1, 2, 3, 5):
            T(f"{family}/{kind}", lambda: socket.socket(family, kind))
            T(f"pair {family}/{kind}", lambda: pair(family, kind))
"""
    await all_refused(case, code, {"EAFNOSUPPORT"})


@attack()
async def raw_sockets(case: Case) -> None:
    code = """
for family in (2, 10):
    for protocol in (0, 1, 6, 17, 58, 255):
        T(f"{family}/{protocol}", lambda: socket.socket(family, 3, protocol))
"""
    await all_refused(case, code, {"EPERM", "EPROTONOSUPPORT", "EAFNOSUPPORT"})


@attack(landlock=True, gvisor=True)
async def the_network(case: Case) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        said = await case.tries(f"""
def udp(family, where):
    with socket.socket(family, 2) as s: s.sendto(b"x", where)
T("host", lambda: socket.create_connection(("127.0.0.1", {port}), 1))
T("out", lambda: socket.create_connection(("1.1.1.1", 53), 1))
T("metadata", lambda: socket.create_connection(("169.254.169.254", 80), 1))
T("udp", lambda: udp(2, ("1.1.1.1", 53)))
T("udp host", lambda: udp(2, ("127.0.0.1", {port})))
T("udp 6", lambda: udp(10, ("::1", {port})))
T("broadcast", lambda: udp(2, ("255.255.255.255", 9)))
T("name", lambda: socket.getaddrinfo("example.com", 80))
R["links"] = str([name for _, name in socket.if_nameindex()]) if 0 else "EPERM"
""")
        await must.fail(BlockingIOError, asyncio.to_thread(server.accept))
    refused = {"ENETUNREACH", "EHOSTUNREACH", "EPERM", "EACCES", "EADDRNOTAVAIL", "EAFNOSUPPORT"}
    name = said.pop("name")
    assert "addr" not in name, name
    if case.in_container or case.in_image:  # its own loopback device answers
        assert said.pop("host") == "ECONNREFUSED"
        del said["udp host"], said["udp 6"]
    assert set(said.values()) <= refused, said


@attack(not_docker="the daemon has the image's files")
async def the_layer_of_an_image(case: Case) -> None:
    """Its folder on the machine is out of reach, and so are the overlay's other parts."""
    if not case.in_image:
        assert case.sandbox.image is None
        return
    image = case.sandbox.image
    assert image is not None
    parts = [image.place, os.path.dirname(image.place), "/sys", "/sys/changes", "/sys/skeleton"]
    said = await case.tries(f"""
mounts = open("/proc/self/mountinfo").read()
R["told"] = str({os.path.dirname(image.place)!r} in mounts)
for path in {parts!r}: T(path, lambda: os.listdir(path))
for name in ("trusted.overlay.opaque", "trusted.overlay.redirect", "trusted.overlay.metacopy"):
    T(name, lambda: os.setxattr("/etc", name, b"y"))
T("remount", lambda: open("/proc/self/mem").close() or libc.mount(b"", b"/", b"", 32, b"") and 1/0)
""")
    assert said.pop("told") == "False"
    assert {said.pop(path) for path in parts} == {"ENOENT"}
    assert said.pop("remount") == "ZeroDivisionError"
    assert set(said.values()) <= {"EPERM", "EOPNOTSUPP"}, said


@attack(landlock=True)
async def writing_what_is_read_only(case: Case) -> None:
    if case.in_image:  # all else is its own
        await all_refused(
            case,
            f"""
import sysconfig
places = ["/usr", "/usr/lib", "/usr/bin", "/proc", sysconfig.get_paths()["stdlib"],
    os.path.dirname(os.path.realpath(sys.executable))]
for place in places: T(place, lambda: open(place + "/{PWNED}", "w"))
for file in ("/usr/bin/env", os.__file__, "/bin/sh"):
    T(file, lambda: open(file, "r+"))
    T("unlink " + file, lambda: os.unlink(file))
    T("chmod " + file, lambda: os.chmod(file, 0o777))
    T("rename " + file, lambda: os.rename(file, file + "x"))
""",
        )
        return
    await all_refused(
        case,
        f"""
import sysconfig
places = ["/", "/usr", "/usr/lib", "/usr/bin", "/etc", "/dev", "/proc", "/packages",
    sysconfig.get_paths()["stdlib"], os.path.dirname(sys.executable), "/root", "/home", "/var"]
for place in places: T(place, lambda: open(place + "/{PWNED}", "w"))
for file in ("/etc/passwd", "/etc/hosts", "/usr/bin/env", os.__file__, "/bin/sh"):
    T(file, lambda: open(file, "r+"))
    T("unlink " + file, lambda: os.unlink(file))
    T("chmod " + file, lambda: os.chmod(file, 0o777))
    T("rename " + file, lambda: os.rename(file, file + "x"))
""",
    )


@attack(landlock=True)
async def writing_the_kernels_settings(case: Case) -> None:
    await all_refused(
        case,
        """
def put(path):
    with open(path, "w") as file: file.write("1")
for path in ("sys/kernel/hostname", "sys/kernel/core_pattern", "sys/vm/overcommit_memory",
    "sysrq-trigger", "self/oom_score_adj", "self/uid_map", "self/gid_map", "self/setgroups",
    "self/attr/current", "self/coredump_filter", "self/timerslack_ns", "self/comm", "1/comm",
    "1/oom_score_adj", "1/mem", "kcore", "kmsg", "irq/0/smp_affinity", "self/clear_refs"):
    T(path, lambda: put("/proc/" + path))
for path in ("/sys/kernel/uevent_helper", "/sys/power/state", "/sys/fs/cgroup/cgroup.procs"):
    T(path, lambda: put(path))
""",
    )


@attack(landlock=True)
async def devices(case: Case) -> None:
    await all_refused(
        case,
        """
for name in ("mem", "kmem", "kmsg", "port", "fuse", "kvm", "vsock", "vhost-vsock", "tty", "console",
    "ptmx", "pts/0", "loop0", "loop-control", "vda", "sda", "userfaultfd", "net/tun", "rtc0", "fb0",
    "mapper/control", "snapshot", "hpet", "autofs", "btrfs-control", "cuse", "nvidia0",
    "dri/card0"):
    T(name, lambda: os.open("/dev/" + name, os.O_RDWR))
    if R[name] == "EACCES": R[name] = "EPERM"
for kind in (0o20666, 0o60666):
    for number in (0x103, 0xfd00, 0x101):
        T(f"mknod {kind:o} {number}", lambda: os.mknod("device", kind, number))
""",
        {"ENOENT", "EPERM"} | ({"EACCES"} if case.by_landlock else set()),
    )


@attack()
async def privileges(case: Case) -> None:
    said = await case.tries("""
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"):
    R[name] = status[name].strip().lstrip("0")
""")
    assert said == {
        "CapInh": "", "CapPrm": "", "CapEff": "", "CapBnd": "", "CapAmb": "",
        "NoNewPrivs": "1", "Seccomp": "2",
    }  # fmt: skip
    await all_refused(
        case,
        """
def libc_check(result):
    if result < 0: raise OSError(ctypes.get_errno(), "x")
for call in ("setuid", "setgid", "seteuid"): T(call, lambda: getattr(os, call)(1))
T("setgroups", lambda: os.setgroups([1]))
T("chown", lambda: os.chown("/box", 1, 1))
T("capset", lambda: libc_check(libc.capset(b"\\x22\\x05\\x08\\x20" + bytes(4), b"\\xff" * 24)))
for number in (0, 7, 21):
    T(f"ambient {number}", lambda: libc_check(libc.prctl(47, 2, number, 0, 0)))
T("nnp off", lambda: libc_check(libc.prctl(38, 0, 0, 0, 0)))
T("seccomp off", lambda: libc_check(libc.prctl(22, 0, 0, 0, 0)))
T("security xattr", lambda: os.setxattr("/box", "security.capability", bytes(20)))
T("trusted xattr", lambda: os.setxattr("/box", "trusted.x", b"1"))
""",
        {"EPERM", "EINVAL", "ENOTSUP"},
    )


@attack()
async def set_uid_programs(case: Case) -> None:
    """Those of /usr/bin start, and gain nothing."""
    code = """
for f in $(find /usr/bin -perm -4000 2>/dev/null) /usr/bin/env; do
    cp $f /box/copy 2>/dev/null && chmod 4755 /box/copy 2>/dev/null
done
su -c id 2>&1; mount -t tmpfs x /box 2>&1; mount -o remount,rw / 2>&1; umount /proc 2>&1
cp /usr/bin/id /box/copy; chmod 6755 /box/copy; /box/copy -u; id -G
nsenter -t 1 -a true 2>&1; unshare -r true 2>&1; chroot / true 2>&1
"""
    result = await case.sandbox.exec(["bash", "-c", code])
    lines = result.stdout_text.splitlines()
    assert "uid=0(root)" not in result.stdout_text
    assert result.exit_code != 0
    assert lines, described(result)


@attack(landlock=True)
async def out_through_proc_and_dots(case: Case) -> None:
    secret = str(case.arena.canary / "answers.txt")
    code = f"""
secret = {secret!r}
up = "/".join([".."] * 40)
box = os.getcwd()
os.symlink("/", "slash")
here = os.open(box, os.O_RDONLY)
for name, path in {{"plain": secret, "up": box + "/" + up + secret, "link": "slash" + secret,
    "root": "/proc/self/root" + secret, "cwd": "/proc/self/cwd/" + up + secret,
    "task": "/proc/thread-self/root" + secret, "one": "/proc/1/root" + secret,
    "fd": f"/proc/self/fd/{{here}}/" + up + secret}}.items():
    T(name, lambda: open(path).read())
T("fchdir", lambda: (os.fchdir(here), os.chdir(up), open("." + secret).read()))
T("dir_fd", lambda: os.open(up + secret, os.O_RDONLY, dir_fd=here))
os.chdir(box)
os.unlink("slash")
"""
    await all_refused(case, code, {"ENOENT", "EACCES", "EPERM"})


@attack(landlock=True)
async def typing_at_a_terminal(case: Case) -> None:
    await all_refused(
        case,
        """
import fcntl
for fd in (0, 1, 2):
    T(f"push {fd}", lambda: fcntl.ioctl(fd, 0x5412, b"x"))
    T(f"linux {fd}", lambda: fcntl.ioctl(fd, 0x541c, bytes([3, 0])))
T("own", lambda: fcntl.ioctl(0, 0x540e, 1))
T("tty", lambda: os.open("/dev/tty", os.O_RDWR))
""",
        {"EPERM", "ENOTTY", "ENOENT", "EACCES", "ENXIO"},
    )


@attack(landlock=True)
async def raising_limits(case: Case) -> None:
    said = await case.tries("""
import resource
for name in ("NPROC", "AS", "FSIZE", "NOFILE", "CPU", "CORE", "SIGPENDING", "MSGQUEUE", "RTPRIO"):
    kind = getattr(resource, "RLIMIT_" + name, 11)
    hard = resource.getrlimit(kind)[1]
    T(name, lambda: resource.setrlimit(kind, (hard + 1, hard + 1)))
    T(name + " off", lambda: resource.setrlimit(kind, (-1, -1)))
T("nice", lambda: os.nice(-1))
T("fifo", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
""")
    assert set(said.values()) <= {"ValueError", "EPERM", "EACCES"}, said


@attack()
async def core_dumps(case: Case) -> None:
    """No file, and where the machine sends them to a program (core_pattern), not that either."""
    said = await case.tries("""
import resource
R["limit"] = str(resource.getrlimit(resource.RLIMIT_CORE))
T("zero", lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
T("more", lambda: resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20)))
if os.fork() == 0: os.abort()
status = os.wait()[1]
R["dumped"] = str(os.WCOREDUMP(status))
R["files"] = str([name for name in os.listdir("/box") if "core" in name])
""")
    assert said["limit"] in ("(1, 1)", "(0, 0)")  # 0 only where the machine's hard limit is that
    # Python's word for EPERM here. To 0 is no better: a pipe in core_pattern heeds 1 alone.
    assert said["more"] == said["zero"] == "ValueError", said
    assert (said["dumped"], said["files"]) == ("False", "[]"), said
