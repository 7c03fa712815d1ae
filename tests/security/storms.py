"""Many at once, many in a row, and what is left of them: storm, soak and the memory scan."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from arena import ATTACKS, LANDLOCK_MODES, LIMITS, Arena, Attack, described, slot_mounts

from agentgym_rl.core import SandboxError, SandboxLost
from agentgym_rl.gym import Sandbox, SandboxBackend
from agentgym_rl.gym.sandbox_records import Status

CROWD = 16
NUM_HONEST = 2

# ---------------------------------------------------------------------- storm


async def storm(arena: Arena) -> dict[str, object]:
    """Every attack of the mode, `CROWD` of them at any moment, with honest episodes among them.

    One whose slot was killed, as the crowd left it too little processor time to end a program, is
    played once more, alone.
    """
    planned = [attack for attack in ATTACKS.values() if arena.mode in attack.modes]
    random.Random(0).shuffle(planned)
    failures: dict[str, str] = {}
    starved: list[Attack] = []
    slots = CROWD + NUM_HONEST
    async with arena.make_backend(slots) as backend:
        crowd = replace(arena, backend=backend, crowded=True)
        room = asyncio.Semaphore(CROWD)
        over = asyncio.Event()

        async def one(attack: Attack) -> None:
            async with room:
                try:
                    await crowd.contain(attack)
                except Exception as error:
                    if isinstance(error, SandboxLost) and "could not be killed" in str(error):
                        starved.append(attack)
                    else:
                        failures[attack.name] = f"{type(error).__name__}: {error}"[:2000]

        async with asyncio.TaskGroup() as tasks:
            honest = [tasks.create_task(episodes(backend, over, n)) for n in range(NUM_HONEST)]
            async with asyncio.TaskGroup() as attackers:
                for attack in planned:
                    attackers.create_task(one(attack))
            over.set()
        await crowd.check_processes(slots + 1, num_backends=2)
    for attack in starved:
        await arena.contain(attack)
    done = sum(task.result() for task in honest)
    return {"attacks": len(planned), "failures": failures, "honest": done}


async def episodes(backend: SandboxBackend, over: asyncio.Event, seed: int) -> int:
    """Honest episodes until it is over; how many. Each result has to be exactly right."""
    draw, done = random.Random(seed), 0
    while not over.is_set():
        number = draw.randrange(10**6)
        async with await backend.create(limits=LIMITS, timeout_s=120) as sandbox:
            await episode(sandbox, number)
        done += 1
    return done


async def episode(sandbox: Sandbox, number: int) -> None:
    code = "n = int(input()); open('out', 'w').write(str(n * n)); print(n + 1)"
    stdin = f"{number}\n".encode()
    result = await sandbox.run_python(code, stdin=stdin, collect=["out"])
    assert result.ok, described(result)
    assert result.stdout_text == f"{number + 1}\n"
    assert result.files == {"out": str(number * number).encode()}
    session = await sandbox.open_session()
    assert (await session.run(f"x = {number}")).ok
    told = await session.run("x - int(open('out').read())")
    assert told.stdout_text == f"{number - number * number}\n", described(told)
    if not sandbox.capabilities.exec:
        return
    shell = await sandbox.exec(["bash", "-c", "cat out; echo; cat"], stdin=stdin)
    assert shell.stdout_text == f"{number * number}\n{number}\n", described(shell)


# ---------------------------------------------------------------------- memory

SCAN = """
first, second = bytes.fromhex({first!r}), bytes.fromhex({second!r})
own = (first + second) if {control} else b""
def count(data):
    hits, at = 0, data.find(first)
    while at >= 0:
        hits += data[at + len(first) : at + len(first) + len(second)] == second
        at = data.find(first, at + 1)
    return hits
def scan():
    hits = total = 0
    with open("/proc/self/mem", "rb", 0) as memory, open("/proc/self/maps") as maps:
        for line in maps.readlines():
            place, rights = line.split()[:2]
            if rights[0] != "r" or "[v" in line: continue
            at, end = (int(part, 16) for part in place.split("-"))
            while at < end:
                memory.seek(at)
                try: data = memory.read(min(1 << 20, end - at))
                except OSError: break
                hits += count(data); total += len(data)
                if len(data) < 64 or at + len(data) >= end: break
                at += len(data) - 64
    return hits, total >> 20
print(*scan())
"""


LANDLOCK_SCAN = """
import ctypes, os
first, second = bytes.fromhex({first!r}), bytes.fromhex({second!r})
own = (first + second) if {control} else b""
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
out, put = os.pipe()
def count(data):
    hits, at = 0, data.find(first)
    while at >= 0:
        hits += data[at + len(first) : at + len(first) + len(second)] == second
        at = data.find(first, at + 1)
    return hits
def around(start, end):
    global hits, total
    carry = b""
    for at in range(start & -4096, end, 4096):
        if libc.write(put, ctypes.c_void_p(at), 4096) == 4096:
            carry = carry[-64:] + os.read(out, 4096)
            hits += count(carry); total += 4096
def below(end):
    while libc.write(put, ctypes.c_void_p(end - 4096), 4096) == 4096:
        os.read(out, 4096); end -= 4096
    return end
hits = total = 0
mapped = ctypes.cast(libc.write, ctypes.c_void_p).value
stack = ctypes.c_void_p.in_dll(libc, "__libc_stack_end").value
heap = libc.sbrk(0)
around(below(heap), heap)
around(id(int) - (8 << 20), id(int) + (8 << 20))  # the interpreter
around(mapped - (64 << 20), mapped + (16 << 20))  # what was mapped: arenas, libraries
around(stack - (1 << 20), stack + (1 << 16))
print(hits, total >> 20)
"""
"""Where /proc/self is closed: a pipe takes what is mapped, and refuses what is not."""


async def scan(arena: Arena) -> dict[str, object]:
    """Plant a secret in one episode; look for it in later children of the slot, and in process 1.

    The scanner gets the secret in two halves, as hexadecimal digits: it never holds it whole,
    unless it is the control, which joins them.
    """
    secret = b"zq" + os.urandom(24).hex().encode()
    halves = {"first": secret[:20].hex(), "second": secret[20:].hex()}
    program = LANDLOCK_SCAN if arena.mode in LANDLOCK_MODES else SCAN
    seek = program.format(**halves, control=False)
    for _ in range(10):
        async with await arena.backend.create() as sandbox:
            await plant(sandbox, secret.decode())
            same = await sandbox.run_python(seek)  # the next run of the very same episode
            beside = await (await sandbox.open_session()).run(seek)
            servers = await asyncio.to_thread(scan_from_outside, secret, arena.fork_servers())
        async with await arena.backend.create() as sandbox:
            other = await sandbox.run_python(seek)
            session = await sandbox.open_session()
            kept = await session.run(seek)
            control = await sandbox.run_python(program.format(**halves, control=True))
    found = {"same": same, "beside": beside, "other": other, "session": kept, "control": control}
    for result in found.values():
        assert result.ok, described(result)
    answer: dict[str, object] = {
        name: [int(word) for word in result.stdout.split()] for name, result in found.items()
    }
    async with await arena.backend.create() as sandbox:
        assert (await sandbox.run_python("pass")).ok
        await arena.check_processes()  # the next child waits, and none is about to be replaced
        outside = await asyncio.to_thread(scan_from_outside, secret, arena.own_processes())
        return answer | {"outside": outside, "servers": servers}


async def plant(sandbox: Sandbox, secret: str) -> None:
    code = f"hidden = {secret!r}\nimport sys; print(len(sys.stdin.read()), hidden)"
    text = secret.encode()
    result = await sandbox.run_python(code, stdin=text * 50, files={"answers": text * 50})
    assert result.ok, described(result)
    session = await sandbox.open_session()
    assert (await session.run(f"kept = {secret!r}; kept")).ok
    if not sandbox.capabilities.fork_snapshot:
        return
    fork = await session.fork()
    assert (await fork.run("kept * 2")).ok
    done = await sandbox.exec(["bash", "-c", f"echo {secret}"], env={"SECRET": secret})
    assert done.ok, described(done)


def scan_from_outside(secret: bytes, pids: list[int]) -> list[int] | None:
    """[copies, processes] in these; None where they are closed to us."""
    copies = processes = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/mem", "rb", 0) as memory:
                for start, end in readable(pid):
                    memory.seek(start)
                    copies += memory.read(end - start).count(secret)
        except OSError:
            return None
        processes += 1
    return [copies, processes]


def readable(pid: int) -> list[tuple[int, int]]:
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        place, rights = line.split()[:2]
        if rights[0] == "r" and "[v" not in line:
            start, end = (int(part, 16) for part in place.split("-"))
            found.append((start, end))
    return found


# ---------------------------------------------------------------------- soak


async def soak(arena: Arena, count: int) -> dict[str, object]:
    """`count` executions of every sort, many cancelled; then what of them is still there."""
    async with arena.make_backend(CROWD) as backend:  # what a first start leaves is no leak
        await misuse(arena, backend, random.Random(0))
    await arena.check_processes()  # an earlier sandbox may still be on its way out
    before = footprint(arena)
    tally: dict[str, int] = {}
    started, quarter_kb = time.perf_counter(), 0
    async with arena.make_backend(CROWD) as backend:
        left = iter(range(count))

        async def worker(seed: int) -> None:
            nonlocal quarter_kb
            draw = random.Random(seed)
            for number in left:
                what = await misuse(arena, backend, draw)
                tally[what] = tally.get(what, 0) + 1
                if number % max(500, count // 20) == 0:
                    rate = number / (time.perf_counter() - started)
                    print(f"soak {number}/{count}, {rate:.0f}/s, {tally}", file=sys.stderr)
                if number == count // 4:
                    quarter_kb = memory_kb()

        async with asyncio.TaskGroup() as tasks:
            for seed in range(CROWD):
                tasks.create_task(worker(seed))
        grown_kb = memory_kb() - quarter_kb
        lost, respawns = backend.stats().lost, backend.stats().respawns
    gc.collect()
    after = footprint(arena)
    rate = count / (time.perf_counter() - started)
    return {
        "before": before, "after": after, "tally": tally, "grown_kb": grown_kb, "lost": lost,
        "respawns": respawns, "per_second": round(rate),
    }  # fmt: skip


def footprint(arena: Arena) -> dict[str, object]:
    """What could be left over of slots and programs, except for those of the arena's own."""
    processes = arena.own_processes()
    mine = f"arl-{os.getpid()}-"
    groups = [
        str(path)
        for folder in Path("/sys/fs/cgroup").glob("*")
        for path in folder.glob(f"**/{mine}*")
    ]
    return {
        "processes": len(processes),
        "zombies": sum(b") Z " in Path(f"/proc/{pid}/stat").read_bytes() for pid in processes),
        "containers": len(arena.own_containers()),
        "mounts": len(slot_mounts()),
        "cgroups": len(groups),
        "handles": len(os.listdir("/proc/self/fd")),
        "temporary": sorted(n for n in os.listdir("/tmp") if n.startswith(("arl-pwned", mine))),
        "boxes": [len(list(box.iterdir())) for box in arena_boxes()],
    }


def arena_boxes() -> list[Path]:
    """Old work folders of slots without namespaces, each with what is left to be removed."""
    return sorted(Path(tempfile.gettempdir()).glob("arl-box-*/trash"))


def memory_kb() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") >> 10


async def misuse(arena: Arena, backend: SandboxBackend, draw: random.Random) -> str:
    """One execution of some sort, cancelled at some moment one time in four; what it came to."""
    more = (litter,) if arena.mode in LANDLOCK_MODES else (daemons, shell)
    sort = draw.choice((plain, plain, plain, slow, session, killed, *more))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(use(backend, sort, draw))
        if draw.random() < 0.25:
            await asyncio.sleep(draw.random() ** 2 * arena.cancel_within_s)
            task.cancel()
            await asyncio.wait([task])
    return "cancelled" if task.cancelled() else sort.__name__


async def use(backend: SandboxBackend, sort, draw: random.Random) -> None:
    async with await backend.create(timeout_s=120) as sandbox:
        await sort(sandbox, draw)


async def plain(sandbox: Sandbox, draw: random.Random) -> None:
    number = draw.randrange(10**9)
    result = await sandbox.run_python(f"open('f', 'w').write('x'); print({number})")
    assert result.stdout_text == f"{number}\n", described(result)


async def slow(sandbox: Sandbox, draw: random.Random) -> None:
    tight = replace(LIMITS, wall_s=0.01 + draw.random() / 20)
    result = await sandbox.run_python("while True: pass", limits=tight)
    assert result.status is Status.TIMEOUT, described(result)
    assert (await sandbox.run_python("pass")).ok


async def daemons(sandbox: Sandbox, draw: random.Random) -> None:
    code = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid(); time.sleep(1000)
"""
    result = await sandbox.run_python(code)
    assert (result.status, result.killed_processes) == (Status.OK, 3), described(result)


async def session(sandbox: Sandbox, draw: random.Random) -> None:
    opened = await sandbox.open_session()
    assert (await opened.run("x = 5")).ok
    if sandbox.capabilities.fork_snapshot:
        fork = await opened.fork()
        assert (await fork.run("x += 1; x")).stdout == b"6\n"
    if draw.random() < 0.3:
        stuck = await opened.run("while True: pass", timeout_s=0.02)
        assert stuck.status is Status.TIMEOUT, described(stuck)
    elif draw.random() < 0.5:
        await opened.close()
    assert (await sandbox.run_python("print(1)")).stdout == b"1\n"


async def litter(sandbox: Sandbox, draw: random.Random) -> None:
    """Work folders that are not removed at once."""
    code = f"""
import os
for n in range({draw.choice((10, 10, 10, 700))}): os.symlink("/etc", f"l{{n}}")
for n in range({draw.randrange(30)}): os.mkdir(f"d{{n}}", n); os.mkdir("in"); os.chdir("in")
"""
    result = await sandbox.run_python(code)
    assert result.status is Status.OK, described(result)


async def shell(sandbox: Sandbox, draw: random.Random) -> None:
    opened = await sandbox.open_session("shell")
    assert (await opened.run("cd /tmp; x=7")).ok
    assert (await opened.run("echo $x $PWD")).stdout == b"7 /tmp\n"
    result = await sandbox.exec(["bash", "-c", "sleep 100 & cat"], stdin=b"in")
    assert result.stdout == b"in", described(result)


async def killed(sandbox: Sandbox, draw: random.Random) -> None:
    result = await sandbox.run_python("import os; os.kill(os.getpid(), 9)")
    assert result.status is Status.KILLED, described(result)
    opened = await sandbox.open_session()
    gone = await opened.run("import os; os._exit(1)")
    assert gone.state_lost, described(gone)
    try:
        await opened.run("1")
    except SandboxError:
        return
    raise AssertionError("a dead session answered")
