"""Using up what there is: processes, time, processors, output, files."""

import time
from dataclasses import replace

from arena import Case, attack, described

from agentgym_rl.gym.sandbox_records import Status

LATE_S = 20.0
"""A machine that is busy with sixteen attacks and more may be this late with an alarm."""
BUSY_S = 50.0
"""A busy machine may take so long to give a program a few seconds of a processor."""


async def ends(case: Case, code: str, status: Status, **limits: float) -> None:
    """It ends with `status`, and not much after its time."""
    started = time.perf_counter()
    result = await case.run(code, **limits)
    assert result.status is status, described(result)
    wall_s = limits.get("wall_s", case.limits.wall_s)
    case.must_be_soon(started, within_s=wall_s + LATE_S)


@attack(landlock=True)
async def fork_bomb(case: Case) -> None:
    code = "while True:\n    try: os.fork()\n    except OSError: pass"
    await ends(case, code, Status.TIMEOUT, wall_s=0.7)


@attack()
async def fork_and_hold(case: Case) -> None:
    code = """
n = 0
try:
    while True:
        if os.fork() == 0: time.sleep(100)
        n += 1
except OSError as error: print(n, errno.errorcode[error.errno])
"""
    result = await case.run(code)
    count, why = result.stdout_text.split()
    assert (result.status, why) == (Status.OK, "EAGAIN")
    assert 10 < int(count) < 32
    assert result.killed_processes == int(count)


@attack()
async def shell_fork_bomb(case: Case) -> None:
    code = ":(){ :|:& };: 2>/dev/null; sleep 100"
    tight, started = replace(case.limits, wall_s=1.0), time.perf_counter()
    result = await case.sandbox.exec(["bash", "-c", code], limits=tight)
    assert result.status in (Status.TIMEOUT, Status.ERROR, Status.OUTPUT_LIMIT), described(result)
    case.must_be_soon(started, within_s=1 + LATE_S)


@attack(landlock=True)
async def thread_bomb(case: Case) -> None:
    code = """
import threading
n = 0
try:
    while True:
        threading.Thread(target=time.sleep, args=(50,), daemon=True).start()
        n += 1
except (RuntimeError, MemoryError): print(n, flush=True)
os._exit(0)
"""
    result = await case.run(code)
    assert result.status is Status.OK, described(result)
    assert int(result.stdout) < 32


@attack()
async def orphans_without_end(case: Case) -> None:
    """Dying processes by the thousand, for process 1 to reap: it still hears the host's KILL."""
    code = """
for _ in range(3):
    try:
        if os.fork() == 0: break
    except OSError: pass  # those before it were faster
while True:
    try:
        if os.fork() == 0:
            try:
                for _ in range(4): os.fork()
            finally: os._exit(0)
        os.waitpid(-1, os.WNOHANG)
    except OSError: pass
"""
    await ends(case, code, Status.TIMEOUT, wall_s=1.0)


@attack()
async def processes_that_give_birth_and_die(case: Case) -> None:
    """A chain in which no process lives long enough to be found by its number."""
    code = """
for _ in range(8):
    try: child = os.fork() == 0
    except OSError: break  # those before it were faster
    if child:
        os.setsid()
        while True:
            try:
                if os.fork(): os._exit(0)
            except OSError: pass
"""
    result = await case.run(code)
    assert result.status is Status.OK, described(result)
    assert result.killed_processes >= 1


@attack(landlock=True, gvisor=True)
async def busy_loop(case: Case) -> None:
    await ends(case, "while True: pass", Status.TIMEOUT, wall_s=0.3)


@attack(landlock=True)
async def one_long_instruction(case: Case) -> None:
    await ends(case, "x = 7 ** (10 ** 8)", Status.TIMEOUT, wall_s=0.3)


@attack(landlock=True)
async def catastrophic_pattern(case: Case) -> None:
    code = "import re; re.match('(a+)+$', 'a' * 64 + 'b')"
    await ends(case, code, Status.TIMEOUT, wall_s=0.3)


@attack(landlock=True, wall_s=BUSY_S)
async def processor_seconds(case: Case) -> None:
    await ends(case, "while True: pass", Status.CPU_LIMIT, cpu_s=1)


@attack(landlock=True, wall_s=BUSY_S)
async def processor_seconds_with_the_signal_ignored(case: Case) -> None:
    code = "signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    await ends(case, code, Status.CPU_LIMIT, cpu_s=1)


@attack(landlock=True)
async def sleeps_for_ever(case: Case) -> None:
    await ends(case, "time.sleep(1e9)", Status.TIMEOUT, wall_s=0.2)


@attack()
async def waits_for_a_thread_for_ever(case: Case) -> None:
    code = "import threading; threading.Thread(target=time.sleep, args=(1e9,)).start()"
    await ends(case, code, Status.TIMEOUT, wall_s=0.3)


@attack(landlock=True)
async def never_ends_its_ending(case: Case) -> None:
    code = "import atexit\n@atexit.register\ndef f():\n    while True: time.sleep(1)"
    await ends(case, code, Status.TIMEOUT, wall_s=0.3)


@attack(landlock=True, gvisor=True)
async def standard_output_flood(case: Case) -> None:
    result = await case.run("while True: os.write(1, bytes(65536))")
    assert (result.status, result.truncated) == (Status.OUTPUT_LIMIT, True)
    assert len(result.stdout) <= case.limits.output_bytes


@attack(landlock=True)
async def standard_error_flood(case: Case) -> None:
    result = await case.run("while True: sys.stderr.write('y' * 65536)")
    assert (result.status, result.truncated) == (Status.OUTPUT_LIMIT, True)
    assert len(result.stderr) <= case.limits.output_bytes


@attack()
async def flood_of_both_by_many(case: Case) -> None:
    code = """
for fd in (1, 2, 1, 2):
    if os.fork() == 0:
        while True: os.write(fd, bytes(65536))
time.sleep(100)
"""
    result = await case.run(code)
    assert result.status is Status.OUTPUT_LIMIT, described(result)
    assert len(result.stdout) + len(result.stderr) <= case.limits.output_bytes


@attack()
async def flood_by_a_daemon_when_all_is_over(case: Case) -> None:
    code = """
if os.fork() == 0:
    os.setsid()
    while True: os.write(1, b"z" * 4096)
"""
    result = await case.run(code)
    assert result.status in (Status.OK, Status.OUTPUT_LIMIT), described(result)
    assert len(result.stdout) <= case.limits.output_bytes


@attack(landlock=True, gvisor=True)
async def disk_filled_by_one_file(case: Case) -> None:
    said = await case.tries("""
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
file = open("a", "wb", 0)
def fill():
    while True: file.write(bytes(1 << 20))
T("fill", fill)
R["size"] = str(os.path.getsize("a"))
""")
    assert said == {"fill": "EFBIG", "size": str(case.limits.file_mb << 20)}


@attack()
async def disk_filled_through_every_door(case: Case) -> None:
    said = await case.tries("""
def fill(folder):
    for n in range(99):
        with open(f"{folder}/{n}", "wb", 0) as file:
            for _ in range(7): file.write(bytes(1 << 20))
for folder in ("/box", "/tmp", "/dev/shm"): T(folder, lambda: fill(folder))
found = {os.stat(f).st_dev: os.statvfs(f) for f in ("/box", "/tmp", "/dev/shm")}
R["MB"] = str(sum(each.f_blocks * each.f_frsize for each in found.values()) >> 20)
total = 0
for folder in ("/box", "/tmp", "/dev/shm"):
    for name in os.listdir(folder):
        total += os.lstat(f"{folder}/{name}").st_blocks * 512
R["total"] = str(total >> 20)
import shutil
for folder in ("/box", "/tmp", "/dev/shm"):
    for name in os.listdir(folder):
        if name.isdigit(): os.unlink(f"{folder}/{name}")
""")
    assert {said[folder] for folder in ("/box", "/tmp", "/dev/shm")} <= {"ENOSPC"}, said
    assert said["MB"] == str(case.limits.disk_mb)
    assert int(said["total"]) <= case.limits.disk_mb


@attack()
async def inodes_used_up(case: Case) -> None:
    said = await case.tries("""
def fill():
    for n in range(10 ** 6): open(f"/tmp/{n}", "w").close()
T("fill", fill)
R["count"] = str(len(os.listdir("/tmp")))
for name in os.listdir("/tmp"): os.unlink("/tmp/" + name)
""")
    assert said["fill"] == "ENOSPC"
    assert int(said["count"]) <= 64 * case.limits.disk_mb


@attack(landlock=True)
async def handles_used_up(case: Case) -> None:
    said = await case.tries("""
kept = []
def fill():
    while True: kept.append(os.pipe())
T("pipes", fill)
R["count"] = str(2 * len(kept))
for pair in kept: os.close(pair[0]), os.close(pair[1])
""")
    assert said["pipes"] == "EMFILE"
    assert int(said["count"]) <= case.limits.open_files


@attack(landlock=True)
async def timers_by_the_thousand(case: Case) -> None:
    said = await case.tries("""
made = 0
event = (ctypes.c_char * 64)(); ctypes.memset(event, 0, 64)
ctypes.c_int.from_buffer(event, 12).value = 0
ctypes.c_int.from_buffer(event, 8).value = signal.SIGUSR1
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
handle = ctypes.c_void_p()
while made < 5000 and libc.timer_create(1, event, ctypes.byref(handle)) == 0: made += 1
R["made"] = str(made)
""")
    assert int(said["made"]) <= 1024
