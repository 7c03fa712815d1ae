"""Signals, to process 1 above all, and other ways to get at those one must not reach."""

from arena import Case, attack, described

from agentgym_rl.gym.sandbox_records import Status


@attack()
async def signals_to_process_1(case: Case) -> None:
    said = await case.tries("""
for number in range(1, 65):
    if number in (32, 33): continue
    for _ in range(3): T(str(number), lambda: os.kill(1, number))
T("group", lambda: os.killpg(1, 9))
time.sleep(0.1)
""")
    assert set(said.values()) <= {"None", "EPERM", "ESRCH", "EINVAL"}


@attack(landlock=True)
async def flood_of_child_signals(case: Case) -> None:
    """Process 1 hears of the dead by this signal, and through a pipe that may be full."""
    code = "for _ in range(20000):\n    try: os.kill(1, signal.SIGCHLD)\n    except OSError: pass"
    result = await case.run(code)
    assert result.status is Status.OK, described(result)


@attack(gvisor=True)
async def kill_everybody(case: Case) -> None:
    result = await case.run("try: os.kill(-1, 9)\nexcept OSError: pass\nprint('alive')")
    assert (result.status, result.stdout) == (Status.OK, b"alive\n"), described(result)


@attack()
async def stop_ones_own_group(case: Case) -> None:
    result = await case.run("os.killpg(0, signal.SIGSTOP)", wall_s=0.3)
    assert result.status is Status.TIMEOUT, described(result)


@attack(landlock=True)
async def every_signal_ignored_or_blocked(case: Case) -> None:
    code = """
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True: time.sleep(1)
"""
    result = await case.run(code, wall_s=0.3)
    assert result.status is Status.TIMEOUT, described(result)


@attack()
async def stopped_daemons(case: Case) -> None:
    code = """
for _ in range(5):
    if os.fork() == 0:
        os.setsid(); os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(0.1)
"""
    result = await case.run(code)
    assert (result.status, result.killed_processes) == (Status.OK, 5), described(result)


@attack(gvisor=True)
async def daemon_twice_removed_with_the_output_open(case: Case) -> None:
    code = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("still here", flush=True); os.mkfifo("said"); time.sleep(1000)
    os._exit(0)
os.wait()
while not os.path.exists("said"): time.sleep(0.01)
os.unlink("said"); print("parent done")
"""
    result = await case.run(code)
    assert (result.status, result.killed_processes) == (Status.OK, 1), described(result)
    assert result.stdout == b"still here\nparent done\n"


@attack()
async def child_of_process_1_itself(case: Case) -> None:
    """CLONE_PARENT makes a sibling; its end must not be taken for that of the program."""
    code = """
if os.uname().machine == "x86_64":
    pid = libc.syscall(56, ctypes.c_long(0x8000 | 17), 0, 0, 0, 0)
    if pid == 0: libc._exit(3)
    time.sleep(0.2)
    pid = libc.syscall(56, ctypes.c_long(0x8000 | 17), 0, 0, 0, 0)
    if pid == 0:
        while True: libc.sleep(100)
print("fine")
"""
    result = await case.run(code)
    assert (result.status, result.exit_code, result.stdout) == (Status.OK, 0, b"fine\n")


@attack()
async def child_whose_end_is_a_kill_signal(case: Case) -> None:
    """clone can choose the signal a parent gets; orphaned, the parent would be process 1."""
    code = """
clone = 56 if os.uname().machine == "x86_64" else 220
for number in (9, 19, 0):
    if os.fork() == 0:
        if libc.syscall(clone, ctypes.c_long(number), 0, 0, 0, 0) == 0:
            libc.usleep(100000); libc._exit(0)
        os._exit(0)
time.sleep(0.3); print("fine")
"""
    result = await case.run(code)
    assert (result.status, result.stdout) == (Status.OK, b"fine\n"), described(result)


@attack(landlock=True)
async def kill_signal_by_input_and_output(case: Case) -> None:
    """The reader of a pipe sends the writer's signals: here the host would, to process 1."""
    result = await case.run("""
import fcntl
for fd in (1, 2):
    for owner in (1, -1):
        for call, value in ((fcntl.F_SETOWN, owner), (10, 9)):
            try: fcntl.fcntl(fd, call, value)
            except OSError: pass
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
for _ in range(20):
    os.write(1, b"x" * 5000); os.write(2, b"y" * 5000); time.sleep(0.005)
os.write(1, b"\\nalive\\n")
""")
    assert result.status is Status.OK, described(result)
    assert result.stdout.endswith(b"\nalive\n")


@attack(landlock=True)
async def limits_and_priorities_of_process_1(case: Case) -> None:
    """They have the same uid: without the filter the next programs would inherit what it got."""
    said = await case.tries("""
import resource
for kind in range(16): T(f"limit {kind}", lambda: resource.prlimit(1, kind, (0, 0)))
T("nice", lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
T("nice of the uid", lambda: os.setpriority(os.PRIO_USER, 0, 19))
T("nice of the uid by number", lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19))
T("affinity", lambda: os.sched_setaffinity(1, {0}))
T("idle", lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)))
number = 251 if os.uname().machine == "x86_64" else 30
S("io of 1", number, 1, 1, 3 << 13)
S("io of the uid", number, 3, 0, 3 << 13)
""")
    assert set(said.values()) == {"EPERM"}, said


@attack()
async def reading_process_1(case: Case) -> None:
    said = await case.tries("""
for name in ("environ", "mem", "maps", "auxv", "stack", "syscall", "cmdline", "root", "cwd", "exe",
    "fd", "fdinfo", "map_files", "ns/pid", "task/1/mem", "pagemap", "mountinfo", "io"):
    path = "/proc/1/" + name
    T(name, lambda: os.readlink(path) if os.path.islink(path) else
        os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(8))
numbers = [p for p in os.listdir("/proc") if p.isdigit()]
R["numbers"] = "ENOENT" if numbers == [str(os.getpid())] else str(numbers)
""")
    if case.in_container:  # its /proc tells these of everybody
        del said["numbers"], said["cmdline"], said["mountinfo"]
    assert set(said.values()) <= {"ENOENT", "EACCES", "EPERM"}, said
