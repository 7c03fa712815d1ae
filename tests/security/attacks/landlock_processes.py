"""Without namespaces: the machine's other processes, and those beside one in the same box."""

import asyncio
import os
from pathlib import Path

import pytest_free as must
from arena import LANDLOCK_MODES, Case, all_are, attack, described

from agentgym_rl.core import SandboxError
from agentgym_rl.gym.sandbox_records import Status

SIGNAL_CALLS = {"kill": (62, 129), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138)}
SIGNAL_CALLS_OF_TWO = {"tgkill": (234, 131), "rt_tgsigqueueinfo": (297, 240)}


def read(path: str) -> bytes:
    """As the host, whom nothing confines."""
    return Path(path).read_bytes()


@attack(modes=LANDLOCK_MODES)
async def signals_to_anybody(case: Case) -> None:
    """Launcher, host, the child that waits, groups, everybody; each of five calls."""
    column = 0 if case.arena.machine == "x86_64" else 1
    one = {name: pair[column] for name, pair in SIGNAL_CALLS.items()}
    two = {name: pair[column] for name, pair in SIGNAL_CALLS_OF_TWO.items()}
    await all_are(case, f"""
me, launcher, host = os.getpid(), os.getppid(), {os.getpid()}
info = ctypes.create_string_buffer(bytes([9]) + bytes(7) + b"\\xff\\xff\\xff\\xff" + bytes(116))
at = ctypes.addressof(info)
for number in (0, 9, 19, 15, 34):
    for pid in (launcher, host, me - 1, me + 1, 1, 0, -1, -launcher, -me, -host):
        for name, call in {one!r}.items(): S(f"{{name}} {{pid}} {{number}}", call, pid, number, at)
        for name, call in {two!r}.items():
            S(f"{{name}} {{pid}} {{number}}", call, pid, pid, number, at)
    assert set(R.values()) == {{"EPERM"}}, R  # before the next one, which does harm
T("group", lambda: os.killpg(0, 9))
T("thread", lambda: signal.pthread_kill(launcher, 9) if 0 else os.kill(launcher, 9))
""", {"EPERM"})  # fmt: skip
    if case.mode == "landlock-user":
        os.kill(os.getppid() if os.getuid() == 0 else os.getpid(), 0)  # the control: it may
    else:
        assert (await case.run("os.kill(os.getpid(), 9)")).status is Status.KILLED


@attack(modes=LANDLOCK_MODES)
async def signals_to_oneself(case: Case) -> None:
    """The control: of all the targets, this one is left."""
    said = await case.tries("""
heard = []
signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
os.kill(os.getpid(), signal.SIGUSR1); signal.raise_signal(signal.SIGUSR1)
import threading
signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
R["heard"] = str(len(heard))
""")
    assert said == {"heard": "3"}


@attack(modes=LANDLOCK_MODES)
async def signals_by_the_back_door(case: Case) -> None:
    """Owners of handles, leases, watches, timers, a parent's death."""
    await all_are(case, """
import fcntl, struct
read, write = os.pipe()
one, two = socket.socketpair()
launcher = os.getppid()
for fd in (0, 1, 2, read, write, one.fileno()):
    for owner in (launcher, -launcher, -1, os.getpid()):
        T(f"owner {fd} {owner}", lambda: fcntl.fcntl(fd, fcntl.F_SETOWN, owner))
        T(f"owner ex {fd} {owner}", lambda: fcntl.fcntl(fd, 15, struct.pack("ii", 1, owner)))
        for number in (0x8901, 0x8902):
            T(f"ioctl {number} {fd}", lambda: fcntl.ioctl(fd, number, struct.pack("i", owner)))
    T(f"signal {fd}", lambda: fcntl.fcntl(fd, 10, 9))
    T(f"lease {fd}", lambda: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK))
T("watch", lambda: fcntl.fcntl(os.open(".", os.O_RDONLY), fcntl.F_NOTIFY, 2))
def outlive():
    if libc.prctl(1, 0, 0, 0, 0) < 0: raise OSError(ctypes.get_errno(), "x")
T("outlive", outlive)
""", {"EPERM"})  # fmt: skip
    timers = await case.tries("""
event = (ctypes.c_char * 64)()
def timer(kind, thread):
    ctypes.memset(event, 0, 64)
    for at, value in ((8, 9), (12, kind), (16, thread)):
        ctypes.c_int.from_buffer(event, at).value = value
    if libc.timer_create(1, event, ctypes.byref(ctypes.c_void_p())) < 0:
        raise OSError(ctypes.get_errno(), "x")
libc.timer_create.restype = ctypes.c_int
T("another's", lambda: timer(4, os.getppid()))
""")
    assert timers == {"another's": "EINVAL"}


@attack(modes=LANDLOCK_MODES)
async def more_processes_and_threads(case: Case) -> None:
    column = 0 if case.arena.machine == "x86_64" else 1
    said = await all_are(case, f"""
import subprocess, threading
clone, execve, execveat = {(56, 220)[column]}, {(59, 221)[column]}, {(322, 281)[column]}
T("fork", os.fork)
T("forkpty", os.forkpty)
T("spawn", lambda: os.posix_spawn("/usr/bin/env", ["env"], {{}}))
T("subprocess", lambda: subprocess.run(["/usr/bin/env"]))
T("exec", lambda: os.execv("/usr/bin/env", ["env"]))
T("exec by handle", lambda: os.execve(os.open("/usr/bin/env", os.O_RDONLY), ["env"], {{}}))
for flags in (17, 0x4111, 0x8011, 0x100, 0x4000, 0x11 | 1 << 31, 0x900):
    S(f"clone {{flags:x}}", clone, flags, 0, 0, 0, 0)
if os.uname().machine == "x86_64":
    S("plain fork", 57); S("vfork", 58)
S("execve", execve, 0, 0, 0); S("execveat", execveat, -100, 0, 0, 0, 0x1000)
for flags in (0x10000, 0x3d0f00, 0x10900): S(f"thread {{flags:x}}", clone, flags, 0, 0, 0, 0)
T("thread", threading.Thread(target=print).start)
S("clone3", 435, 0, 88)
""", {"EPERM", "EACCES", "EAGAIN", "RuntimeError", "ENOSYS"})  # fmt: skip
    threads = {said[name] for name in said if name.startswith("thread")}
    assert threads == {"EAGAIN", "RuntimeError"}
    assert said["clone3"] == "ENOSYS"
    result = await case.run("import os; print(os.system('echo there') == 0)")
    assert result.stdout == b"False\n", described(result)


@attack(modes=LANDLOCK_MODES)
async def the_launcher_and_the_host(case: Case) -> None:
    """Their memory, environment, handles, limits and places in the file system."""
    said = await case.tries(f"""
libc.ptrace.restype = ctypes.c_long
for pid in (os.getppid(), {os.getpid()}, os.getpid() + 1):
    for name in ("environ", "mem", "maps", "auxv", "stack", "syscall", "cmdline", "root/etc/passwd",
        "cwd/etc/passwd", "exe", "fd/0", "fd/3", "map_files", "ns/pid", "task", "pagemap", "status",
        "root", "cwd", "stat", "io"):
        T(f"{{pid}} {{name}}", lambda: os.close(os.open(f"/proc/{{pid}}/{{name}}", os.O_RDONLY)))
    for name in ("exe", "root", "cwd", "ns/net"):
        T(f"{{pid}} -> {{name}}", lambda: os.readlink(f"/proc/{{pid}}/{{name}}"))
    for kind in (16, 0x4206, 1): S(f"{{pid}} ptrace {{kind}}",
        101 if os.uname().machine == "x86_64" else 117, kind, pid, 0, 0)
    import resource
    T(f"{{pid}} limit", lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0)))
    T(f"{{pid}} nice", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    T(f"{{pid}} affinity", lambda: os.sched_setaffinity(pid, {{0}}))
    T(f"{{pid}} group", lambda: os.setpgid(pid, 0))
for name in ("", "self/environ", "self/mem", "self/maps", "self/status", "self/fd", "kallsyms",
    "self/root/etc/passwd", "meminfo", "net/tcp", "sysrq-trigger", "mounts", "keys"):
    T("proc " + name, lambda: os.close(os.open("/proc/" + name, os.O_RDONLY)))
""")
    refused = {"EPERM", "EACCES", "ENOENT", "ESRCH", "ENOTDIR", "EINVAL"}
    assert set(said.values()) <= refused, {k: v for k, v in said.items() if v not in refused}
    assert b"PYTHONPATH" in read(f"/proc/{os.getpid()}/environ")  # the control: there is one


@attack(modes=LANDLOCK_MODES)
async def the_environment_of_the_host(case: Case) -> None:
    result = await case.run("""
libc.getenv.restype = ctypes.c_char_p
block = ctypes.c_void_p.in_dll(libc, "environ").value
print(dict(os.environ), libc.getenv(b"ARL_SECURITY_SECRET"), libc.getenv(b"PYTHONPATH"))
""")
    assert result.status is Status.OK, described(result)
    assert case.arena.secret not in result.stdout_text
    assert "None None" in result.stdout_text
    assert os.environ["ARL_SECURITY_SECRET"] == case.arena.secret  # it was there to be had


@attack(modes=LANDLOCK_MODES)
async def capabilities_and_users(case: Case) -> None:
    said = await case.tries("""
data = ctypes.create_string_buffer(24)
assert libc.capget(b"\\x22\\x05\\x08\\x20" + bytes(4), data) == 0
R["capabilities"] = data.raw.strip(b"\\0").hex()
R["flags"] = str((libc.prctl(39, 0, 0, 0, 0), libc.prctl(21, 0, 0, 0, 0)))
R["users"] = str(len({*os.getresuid()}) == 1 and 0 not in os.getresuid() + os.getresgid())
""")
    assert said == {"capabilities": "", "flags": "(1, 2)", "users": "True"}
    await all_are(case, """
def libc_check(result):
    if result < 0: raise OSError(ctypes.get_errno(), "x")
for call in ("setuid", "setgid", "seteuid", "setegid"): T(call, lambda: getattr(os, call)(0))
T("setgroups", lambda: os.setgroups([0]))
T("capset", lambda: libc_check(libc.capset(b"\\x22\\x05\\x08\\x20" + bytes(4), b"\\xff" * 24)))
T("nnp off", lambda: libc_check(libc.prctl(38, 0, 0, 0, 0)))
T("seccomp off", lambda: libc_check(libc.prctl(22, 0, 0, 0, 0)))
T("chroot", lambda: os.chroot("."))
""", {"EPERM", "EINVAL"})  # fmt: skip


@attack(modes=LANDLOCK_MODES)
async def the_neighbours_box_and_processes(case: Case) -> None:
    async with case.arena.neighbour() as other:
        session = await other.open_session()
        planted = await session.run("""
import os
open("n-secret", "w").write("NEIGHBOUR")
print(os.getpid(), os.getcwd())
""")
        assert planted.ok, described(planted)
        pid, box = planted.stdout_text.split()
        path = f"{box}/n-secret"
        assert read(path) == b"NEIGHBOUR"  # the control: the host sees it
        await all_are(case, f"""
pid, box, path = {pid}, {box!r}, {path!r}
T("list", lambda: os.listdir(box)); T("read", lambda: open(path).read())
T("write", lambda: open(path, "w")); T("new", lambda: open(box + "/x", "w"))
T("chmod", lambda: os.chmod(box, 0o777)); T("unlink", lambda: os.unlink(path))
T("rename", lambda: os.rename(path, "stolen")); T("link", lambda: os.link(path, "stolen"))
T("enter", lambda: (os.chdir(box), os.open("n-secret", 0)))
for number in (0, 9, 19, 2): T(f"kill {{number}}", lambda: os.kill(pid, number))
for name in ("mem", "environ", "fd/0", "cwd/n-secret", "root", "maps"):
    T(name, lambda: os.open(f"/proc/{{pid}}/{{name}}", 0))
os.chdir(os.environ["HOME"])
""", {"EACCES", "EPERM", "EXDEV"})  # fmt: skip
        assert (await session.run("open('n-secret').read()")).stdout == b"'NEIGHBOUR'\n"
        assert read(path) == b"NEIGHBOUR"


@attack(modes=LANDLOCK_MODES)
async def what_runs_beside_a_session(case: Case) -> None:
    """Two processes of one box share its files, and nothing else."""
    session = await case.sandbox.open_session()
    pid = (await session.run("import os; secret = 'hidden' * 99; os.getpid()")).stdout_text.strip()
    await all_are(case, f"""
pid = {pid}
for number in (0, 9, 19, 2, 15): T(f"kill {{number}}", lambda: os.kill(pid, number))
for name in ("mem", "environ", "fd/3", "cwd", "maps", "fd/1"):
    T(name, lambda: os.open(f"/proc/{{pid}}/{{name}}", 0))
for near in range(max(2, pid - 40), pid + 40):
    if near != os.getpid(): T(f"near {{near}}", lambda: os.kill(near, 0))
""", {"EACCES", "EPERM", "ENOENT"})  # fmt: skip
    assert (await session.run("len(secret)")).stdout == b"594\n"
    await session.close()


@attack(modes=LANDLOCK_MODES)
async def session_that_stops_itself(case: Case) -> None:
    """Between two cells; the next one is larger than any buffer."""
    session = await case.sandbox.open_session()
    code = f"""
import os, signal
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGSTOP))
signal.setitimer(signal.ITIMER_REAL, {case.between_cells_s})
"""
    first = await session.run(code)
    assert first.ok, described(first)
    await asyncio.sleep(2 * case.between_cells_s)
    async with asyncio.timeout(15 * case.arena.patience):
        result = await session.run("x = '" + "y" * (8 << 20) + "'", timeout_s=0.5)
    assert (result.status, result.state_lost) == (Status.TIMEOUT, True), described(result)


@attack(modes=LANDLOCK_MODES)
async def what_this_isolation_has_not(case: Case) -> None:
    """It says so, in words, and nothing is run instead."""
    session = await case.sandbox.open_session()
    for call in (
        case.sandbox.exec(["true"]), case.sandbox.open_session("shell"), session.fork(),
    ):  # fmt: skip
        await must.fail(SandboxError, call)
    assert (await session.run("6 * 7")).stdout == b"42\n"
    await session.close()
    assert case.sandbox.capabilities.process_isolated is False
    assert case.sandbox.capabilities.disk is False


@attack(modes=LANDLOCK_MODES)
async def files_for_the_next_episode_of_the_box(case: Case) -> None:
    old = await case.run("open('left', 'w').write('x'); os.makedirs('a/b')")
    assert old.ok, described(old)
    sandbox = await case.renew()
    assert await sandbox.list_files() == {}
    assert (await sandbox.run_python("import os; print(os.listdir('.'))")).stdout == b"[]\n"
