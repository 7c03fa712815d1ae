"""Memory: of one process, of many, and where it does not look like memory."""

from arena import Case, attack, described

from agentgym_rl.core import SandboxLost
from agentgym_rl.gym import ExecResult
from agentgym_rl.gym.sandbox_records import Status

TOUCH = """
def touch(mb):
    block = bytearray(mb << 20)
    for at in range(0, len(block), 4096): block[at] = 1
    return block
"""


@attack(landlock=True)
async def one_great_allocation(case: Case) -> None:
    result = await case.run("x = bytearray(3 << 30)")
    assert result.status is Status.MEMORY_LIMIT, described(result)


@attack(landlock=True)
async def memory_bit_by_bit(case: Case) -> None:
    result = await case.run(TOUCH + "kept = []\nwhile True: kept.append(touch(1))")
    assert result.status is Status.MEMORY_LIMIT, described(result)
    assert result.max_rss_kb < (case.limits.memory_mb + 32) << 10


@attack(landlock=True)
async def shared_and_unreserved_mappings(case: Case) -> None:
    said = await case.tries("""
import mmap
T("shared", lambda: mmap.mmap(-1, 4 << 30))
T("private", lambda: mmap.mmap(-1, 4 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
T("unreserved", lambda: mmap.mmap(-1, 4 << 30, flags=0x4022))
""")
    assert set(said.values()) == {"ENOMEM"}


@attack(landlock=True)
async def memory_outside_of_processes(case: Case) -> None:
    """memfd, System V and POSIX queues: none of them is there."""
    said = await case.tries("""
T("memfd", lambda: os.memfd_create("x"))
libc.shmget.restype = ctypes.c_int
def posix(call, *a):
    if call(*a) < 0: raise OSError(ctypes.get_errno(), "x")
T("shm", lambda: posix(libc.shmget, 0, 1 << 20, 0o1600))
T("msg", lambda: posix(libc.msgget, 0, 0o1600))
T("sem", lambda: posix(libc.semget, 0, 1, 0o1600))
T("mlock", lambda: posix(libc.mlockall, 7))
""")
    assert set(said.values()) == {"EPERM"}, said


@attack(not_docker="standard input is a pipe there, and holds as much as any pipe")
async def memory_in_standard_input(case: Case) -> None:
    """It is memory of the host's making, which outlives the program by a moment."""
    code = """
def reopened(): return os.open("/proc/self/fd/0", os.O_RDWR)
T("grow", lambda: os.ftruncate(reopened(), 1 << 20))
T("write", lambda: os.write(reopened(), b"x"))
"""
    said = await case.tries(code, stdin=b"given")
    assert set(said.values()) <= {"EPERM", "EACCES"}, said


@attack(may_lose_sandbox=True, memory_mb=64)
async def memory_of_many_processes(case: Case) -> None:
    """Only a cgroup bounds the sum; the other modes bound each process, and say so."""
    code = """
for _ in range(8):
    if os.fork() == 0:
        x = touch(32)
        time.sleep(1.0)
        os._exit(0)
alive = 0
for _ in range(8): alive += os.waitstatus_to_exitcode(os.wait()[1]) == 0
print(alive)
"""
    result = await in_spite_of_loss(case, TOUCH + code)
    assert case.sandbox.capabilities.total_memory is (case.mode == "cgroup" or case.in_container)
    if not case.sandbox.capabilities.total_memory:
        return
    bound = case.limits.memory_mb + case.limits.disk_mb + 48
    assert result.status in (Status.OK, Status.MEMORY_LIMIT), described(result)
    if result.status is Status.OK:
        assert int(result.stdout) * 32 <= bound


@attack(modes=("cgroup",), may_lose_sandbox=True, memory_mb=64)
async def memory_of_many_that_never_end(case: Case) -> None:
    code = """
for _ in range(20):
    if os.fork() == 0: break
x = touch(40)
time.sleep(100)
"""
    result = await in_spite_of_loss(case, TOUCH + code, wall_s=3)
    assert result.status in (Status.MEMORY_LIMIT, Status.TIMEOUT), described(result)


@attack(modes=("cgroup",), may_lose_sandbox=True, memory_mb=64)
async def memory_in_pipes_and_sockets(case: Case) -> None:
    """Kernel buffers are memory, too; here they are counted."""
    code = """
for _ in range(24):
    if os.fork() == 0: break
kept = []
try:
    while True:
        a, b = socket.socketpair(); kept += [a, b]; a.setblocking(False)
        try:
            while True: a.send(bytes(65536))
        except BlockingIOError: pass
except OSError: pass
time.sleep(100)
"""
    result = await in_spite_of_loss(case, code, wall_s=2)
    assert result.status in (Status.MEMORY_LIMIT, Status.TIMEOUT, Status.KILLED), described(result)


async def in_spite_of_loss(case: Case, code: str, **options: float) -> ExecResult:
    """The result, with the sandbox marked as lost where it says so itself."""
    result = await case.run(code, **options)
    case.lost = result.state_lost
    try:
        await case.sandbox.list_files()
    except SandboxLost:
        case.lost = True
    return result
