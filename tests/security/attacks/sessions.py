"""Sessions that turn on their host, on their own socket, or on what runs beside them."""

import asyncio
import time

import pytest_free as must
from arena import Case, attack, described

from agentgym_rl.core import SandboxError
from agentgym_rl.gym import ExecResult, Session
from agentgym_rl.gym.sandbox_records import Status

BUSINESS_S = 30.0
"""Longest time any call on a broken session may take here."""


async def cell(session: Session, code: str, **options: float) -> ExecResult:
    async with asyncio.timeout(BUSINESS_S):
        return await session.run(code, **options)


async def over(session: Session, code: str) -> None:
    """The cell ends the session, which says so, and is not asked again."""
    result = await cell(session, code, timeout_s=5.0)  # of a crowded machine
    assert result.state_lost, described(result)
    assert result.status is not Status.OK
    await must.fail(SandboxError, session.run("1"))


@attack(landlock=True)
async def cell_that_closes_its_socket(case: Case) -> None:
    await over(await case.sandbox.open_session(), "import os; os.close(3)")
    shut = "import socket; s = socket.socket(fileno=3); s.shutdown(2)"
    await over(await case.sandbox.open_session(), shut)


@attack(landlock=True)
async def cell_that_closes_everything(case: Case) -> None:
    code = "import os, time; os.closerange(0, 100)\nwhile True: time.sleep(1)"
    session = await case.sandbox.open_session()
    await over(session, code)


@attack(landlock=True)
async def cell_that_exits(case: Case) -> None:
    for code in ("os._exit(0)", "os._exit(9)", "os.kill(os.getpid(), 9)", "os.abort()"):
        await over(await case.sandbox.open_session(), f"import os; {code}")


@attack(landlock=True)
async def cell_that_floods(case: Case) -> None:
    session = await case.sandbox.open_session()
    result = await cell(session, "while True: print('x' * 10000)")
    assert result.status is Status.OUTPUT_LIMIT, described(result)
    assert len(result.stdout) <= case.limits.output_bytes
    await session.close()


@attack()
async def cell_that_floods_when_nobody_asked(case: Case) -> None:
    """Between cells: the host neither keeps it nor works itself to death on it."""
    session = await case.sandbox.open_session()
    code = """
import os, threading
def flood():
    while True: os.write(1, b"x" * 65536)
threading.Thread(target=flood, daemon=True).start()
"""
    await cell(session, code)
    before = time.process_time()
    await asyncio.sleep(0.5)
    spent = time.process_time() - before
    assert case.arena.crowded or spent < 0.3, (
        f"the host spent {spent:.2f} s of 0.5 s on reading what nobody wants"
    )
    await session.close()


@attack(landlock=True)
async def cell_that_does_not_heed_interrupts(case: Case) -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    session = await case.sandbox.open_session()
    result = await cell(session, code, timeout_s=0.2)
    assert (result.status, result.state_lost) == (Status.TIMEOUT, True), described(result)


@attack()
async def cell_that_kills_everybody(case: Case) -> None:
    session = await case.sandbox.open_session()
    beside = await case.sandbox.open_session()
    code = """
import os
assert not os.path.exists("/etc/shadow") and os.getppid() <= 1
for number in (9, 19, 15):
    try: os.kill(-1, number)
    except OSError: pass
for pid in range(max(2, os.getpid() - 60), os.getpid() + 60):
    if pid != os.getpid():
        try: os.kill(pid, 9); print("reached", pid)
        except OSError: pass
"""
    result = await cell(session, code)
    if case.arena.landlock >= 6:  # before that what runs in one sandbox can kill each other
        assert (result.status, result.stdout) == (Status.OK, b""), described(result)
        assert (await cell(beside, "6 * 7")).stdout == b"42\n"
    assert (await case.run("print('fine')")).stdout == b"fine\n"
    await session.close()
    await beside.close()


@attack()
async def cell_that_reads_what_runs_beside_it(case: Case) -> None:
    """A verifier's program in the same sandbox has another's eyes on it: none may see."""
    session = await case.sandbox.open_session()
    scan = """
import os, re, time
seen, until = set(), time.time() + 1.0
while time.time() < until:
    for pid in (p for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid()):
        if not {container}: seen.add(pid)
    for pid in range(max(1, os.getpid() - 60), os.getpid() + 60):
        if pid == os.getpid(): continue
        for name in {names}:
            try:
                with open(f"/proc/{{pid}}/{{name}}", "rb", 0) as file: found = file.read(1)
                if found: seen.add((pid, name))
            except IsADirectoryError: seen.add((pid, name))
            except OSError: pass
sorted(map(str, seen))
"""
    names = ["mem", "environ", "maps", "fd/0", "cwd/x"]
    names += [] if case.in_container else ["cmdline", "task"]  # a container's /proc has those
    scan = scan.format(container=case.in_container, names=names)
    async with asyncio.TaskGroup() as tasks:
        scanned = tasks.create_task(cell(session, scan))
        code = "secret = 'hidden' * 100; time.sleep(1.2)"
        beside = tasks.create_task(case.run(code, stdin=b"hidden input"))
    assert beside.result().ok
    assert case.arena.landlock < 2 or scanned.result().stdout == b"[]\n", described(
        scanned.result()
    )
    await session.close()


@attack(landlock=True)
async def cell_that_forges_replies(case: Case) -> None:
    """It may lie about itself, which is an observation; it may not disturb the host or others."""
    session = await case.sandbox.open_session()
    forge = (
        "import os\nfor _ in range(50): os.write(3, bytes(range(64)))\nos.write(3, b'\\0' * 999)"
    )
    await cell(session, forge, timeout_s=2.0)
    for _ in range(3):
        try:
            await cell(session, "1 + 1", timeout_s=2.0)
        except SandboxError:
            break
    assert (await case.run("print('true')")).stdout == b"true\n"
    await session.close()


@attack()
async def cell_that_floods_its_socket(case: Case) -> None:
    session = await case.sandbox.open_session()
    code = """
import os, threading
def flood():
    while True: os.write(3, bytes(65536))
threading.Thread(target=flood, daemon=True).start()
"""
    await cell(session, code, timeout_s=2.0)
    before = time.process_time()
    await asyncio.sleep(0.5)
    spent = time.process_time() - before
    assert case.arena.crowded or spent < 0.3, (
        f"the host spent {spent:.2f} s of 0.5 s on a socket that speaks unasked"
    )
    await session.close()


@attack(landlock=True)
async def cell_that_sends_handles(case: Case) -> None:
    """Handles sent to the host must not stay open there."""
    session = await case.sandbox.open_session()
    code = """
import socket, os
s = socket.socket(fileno=os.dup(3))
for _ in range(20): socket.send_fds(s, [b"\\0"], [0, 1, 2] * 20)
"""
    import os

    before = len(os.listdir("/proc/self/fd"))
    await cell(session, code, timeout_s=2.0)
    assert case.arena.crowded or len(os.listdir("/proc/self/fd")) < before + 20
    await session.close()


@attack()
async def session_that_no_longer_listens(case: Case) -> None:
    """It stops itself between two cells, and the next cell is larger than any buffer."""
    session = await case.sandbox.open_session()
    code = f"""
import os, signal, threading
threading.Timer({case.between_cells_s}, lambda: os.kill(os.getpid(), signal.SIGSTOP)).start()
"""
    first = await cell(session, code)
    assert first.ok, described(first)
    await asyncio.sleep(2 * case.between_cells_s)
    result = await cell(session, "x = '" + "y" * (8 << 20) + "'", timeout_s=0.5)
    assert (result.status, result.state_lost) == (Status.TIMEOUT, True), described(result)


@attack()
async def session_whose_fork_is_a_trap(case: Case) -> None:
    session = await case.sandbox.open_session()
    trap = """
import os, signal
def trap():
    os.write(3, b"X forged"); os._exit(1)
os.fork = trap
"""
    assert (await cell(session, trap)).ok
    async with asyncio.timeout(BUSINESS_S):
        await must.fail(SandboxError, session.fork())
    other = await case.sandbox.open_session()
    assert (await cell(other, "import os\ndef no(): raise OSError(11, 'no')\nos.fork = no")).ok
    async with asyncio.timeout(BUSINESS_S):
        await must.fail(SandboxError, other.fork())
    await session.close()
    await other.close()


@attack()
async def session_with_a_fork_bomb(case: Case) -> None:
    session = await case.sandbox.open_session()
    code = """
import os
while True:
    try: os.fork()
    except OSError: pass
"""
    result = await cell(session, code, timeout_s=0.5)
    assert result.status in (Status.TIMEOUT, Status.ERROR), described(result)
    await session.close()
    await case.renew()


@attack()
async def daemons_of_a_program_beside_a_session(case: Case) -> None:
    """When a program has ended what it started is dead, though a session goes on."""
    session = await case.sandbox.open_session()
    await cell(session, "x = 1; import os, time\nif os.fork() == 0: time.sleep(1000)")
    code = """
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True: open("/box/alive", "a").write("x"); time.sleep(0.001)
        os._exit(0)
os.wait()
while not os.path.exists("/box/alive"): time.sleep(0.01)
"""
    result = await case.run(code)
    assert result.status is Status.OK, described(result)
    assert result.killed_processes >= 5
    look = "a = os.path.getsize('alive'); time.sleep(0.1); print(os.path.getsize('alive') - a)"
    assert (await case.run(look)).stdout == b"0\n"
    assert (await cell(session, "x")).stdout == b"1\n"
    await session.close()
    await case.sandbox.exec(["rm", "-f", "alive"])
    await case.renew()


@attack()
async def births_and_deaths_beside_a_session(case: Case) -> None:
    """A chain of processes too short-lived to be found one by one ends all the same."""
    session = await case.sandbox.open_session()
    code = """
for _ in range(6):
    try: child = os.fork() == 0
    except OSError: break  # those before it were faster
    if child:
        os.setsid()
        while True:
            try:
                if os.fork(): os._exit(0)
                open("/box/alive", "a").write("x")
            except OSError: pass
time.sleep(0.05)
"""
    result = await case.run(code)
    assert result.status is Status.OK, described(result)
    await case.renew()
    assert "alive" not in await case.sandbox.list_files()
    await session.close()


@attack()
async def shells_that_cheat(case: Case) -> None:
    for code in ("exec 3>&-", "kill -9 $$", "exit 5", "exec sleep 100", "kill -STOP $$"):
        session = await case.sandbox.open_session("shell")
        result = await cell(session, code, timeout_s=0.2)
        assert result.status in (Status.ERROR, Status.TIMEOUT, Status.KILLED, Status.OK), code
        try:
            again = await cell(session, "echo again", timeout_s=2.0)
            assert again.stdout in (b"again\n", b""), described(again)
        except SandboxError:
            pass
        await session.close()


@attack()
async def shell_that_traps_interrupts(case: Case) -> None:
    session = await case.sandbox.open_session("shell")
    result = await cell(session, "trap '' INT; while :; do :; done", timeout_s=0.3)
    assert (result.status, result.state_lost) == (Status.TIMEOUT, True), described(result)
