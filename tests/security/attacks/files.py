"""What comes back out of a work folder, and what goes in, when programs arranged it."""

import asyncio
import contextlib
import time
from dataclasses import replace
from pathlib import Path

import pytest_free as must
from arena import PWNED, Case, attack, described

from agentgym_rl.core import SandboxError
from agentgym_rl.gym.sandbox_records import Status

ARRANGE = """
os.symlink("/etc/passwd", "link"); os.symlink("/", "root"); os.symlink("loop", "loop")
os.symlink("/proc/self/environ", "environ"); os.symlink("/proc/1/root", "proc")
os.mkfifo("fifo"); open("fine.txt", "w").write("fine"); os.link("fine.txt", "hard.txt")
open("sparse", "wb").truncate(8 << 20)
open("secret", "w").write("x"); os.chmod("secret", 0)
socket.socket(socket.AF_UNIX).bind("socket")
os.makedirs("closed/in"); open("closed/in/a", "w").write("x"); os.chmod("closed", 0)
for name in ("a\\nb", "-rf", " ", "\\x1b[31m", "*", "...", "ü", "a" * 255):
    open(name, "w").write("odd")
open(b"\\xff\\xfe", "w").write("odd")
"""
RESTORE = """
import shutil
os.path.isdir("closed") and os.chmod("closed", 0o700)
for name in os.listdir("."):
    if name not in (".tmp", ".shm"):
        if os.path.isdir(name) and not os.path.islink(name): shutil.rmtree(name)
        else: os.unlink(name)
"""


@attack()
async def links_pipes_and_odd_names(case: Case) -> None:
    result = await case.run(ARRANGE, collect=["."])
    assert result.status is Status.OK, described(result)
    assert result.files["fine.txt"] == result.files["hard.txt"] == b"fine"
    assert result.files["a\nb"] == result.files["\udcff\udcfe"] == b"odd"
    left_out = {item.path for item in result.skipped_files}
    assert {"link", "root", "loop", "environ", "proc", "fifo", "socket"} <= left_out
    assert not any(b"root:" in data or b"PATH=" in data for data in result.files.values())
    sizes = await case.sandbox.list_files()
    assert sizes["fine.txt"] == 4
    assert not {"link", "fifo", "environ"} & set(sizes)
    await case.run(RESTORE)


@attack()
async def reading_through_links(case: Case) -> None:
    await case.run(ARRANGE)
    for path in ("link", "root", "environ", "fifo", "socket", "loop", "closed"):
        await must.fail(OSError, case.sandbox.read_file(path))
    for path in ("root/etc/passwd", "root/box/fine.txt", "proc/etc/passwd", "fine.txt/x"):
        await must.fail(OSError, case.sandbox.read_file(path))
    await must.fail(OSError, case.sandbox.read_file("sparse", max_bytes=1 << 20))
    assert await case.sandbox.read_file("fine.txt") == b"fine"
    await case.run(RESTORE)


@attack(landlock=True)
async def folders_replaced_by_links(case: Case) -> None:
    await case.sandbox.write_files({"d/x": b"1", "e/f/x": b"1"})
    result = await case.run("""
import shutil
shutil.rmtree("d"); os.symlink("/etc", "d"); shutil.rmtree("e/f"); os.symlink("/usr/lib", "e/f")
""", collect=["d/x", "d", "d/passwd", "e", "e/f/os.py"])  # fmt: skip
    assert result.files == {}, result.files.keys()
    await must.fail(OSError, case.sandbox.read_file("d/passwd"))
    await must.fail(OSError, case.sandbox.read_file("e/f/os.py"))
    if case.in_image:  # the link leads to a folder of its own, as any program's write would
        await case.sandbox.write_files({"d/x": b"2"})
        assert await case.sandbox.read_file("/etc/x") == b"2"
    else:
        await must.fail(SandboxError, case.sandbox.write_files({"d/x": b"2"}))
    await must.fail(SandboxError, case.sandbox.write_files({"e/f/x": b"2"}))
    await case.run(RESTORE)


@attack()
async def things_in_the_way_of_new_files(case: Case) -> None:
    """A pipe must not hold the writer for ever, a link not lead it astray, a folder not be lost."""
    await case.run("""
os.mkfifo("p"); os.mkdir("d"); open("d/keep", "w").write("x"); os.symlink("/etc/passwd", "l")
os.symlink("/box/target", "t"); os.mkfifo("q")
""")
    started = time.perf_counter()
    await case.sandbox.write_files({"p": b"1", "l": b"2", "t": b"3"})
    assert await case.sandbox.read_file("p") == b"1"
    assert await case.sandbox.read_file("l") == b"2"
    assert "target" not in await case.sandbox.list_files()
    for path in ("d", "q/x", "p/x"):
        await must.fail(SandboxError, case.sandbox.write_files({path: b"x"}))
    case.must_be_soon(started, within_s=30)
    await case.run(RESTORE)


@attack(landlock=True)
async def files_too_large_to_be_written(case: Case) -> None:
    block = bytes(1 << 20)
    files = {f"{n}": block for n in range(case.limits.disk_mb + 8)}
    await must.fail(SandboxError, case.sandbox.write_files(files))
    await case.run(RESTORE)


@attack(landlock=True)
async def paths_that_lead_out(case: Case) -> None:
    paths = ["../x", "a/../../x", "", "\0", "/box/../etc/passwd", ".."]
    paths += [] if case.in_image else ["/etc/passwd", "/boxx"]
    for path in paths:
        await must.fail(ValueError, case.sandbox.read_file(path))
        await must.fail(ValueError, case.sandbox.write_files({path: b"x"}))
        await must.fail(ValueError, case.run("pass", collect=[path]))
        if path and not case.by_landlock:
            await must.fail(ValueError, case.sandbox.exec(["true"], cwd=path))
    await must.fail(ValueError, case.sandbox.write_files({".": b"x"}))
    if case.in_image:
        await absolute_paths(case)


async def absolute_paths(case: Case) -> None:
    """Each is a file of the image, if the machine has one of that name, too; its own are closed."""
    canary = str(case.arena.canary / "answers.txt")
    skeletons = b"root:x:0:0:root:/root:/bin/bash\n"
    assert await case.sandbox.read_file("/etc/passwd") == skeletons
    shown = await case.sandbox.exec(["cat", "passwd"], cwd="/etc")
    assert shown.stdout == skeletons, described(shown)
    await must.fail(FileNotFoundError, case.sandbox.read_file(canary))
    folders = ("", "/etc", "/root", "/home", "/tmp", "/var/tmp", "/dev/shm", "/boxx")
    paths = ["/etc/passwd", "/etc/shadow", canary, *(f"{folder}/{PWNED}" for folder in folders)]
    await case.sandbox.write_files(dict.fromkeys(paths, b"mine"))
    result = await case.run("pass", collect=paths)
    assert result.files == dict.fromkeys(paths, b"mine"), described(result)
    assert "mine" not in await asyncio.to_thread(Path("/etc/passwd").read_text)
    for path in ("/usr/bin/env", "/proc/self/environ", "/proc/1/root/etc/passwd", "/dev/null"):
        await must.fail(OSError, case.sandbox.read_file(path))
        await must.fail(SandboxError, case.sandbox.write_files({path: b"x"}))
    for folder in ("/usr", "/usr/lib", "/proc", "/proc/1/root", "/proc/1/cwd"):
        await must.fail(SandboxError, case.sandbox.write_files({f"{folder}/{PWNED}": b"x"}))


@attack()
async def folders_200_deep(case: Case) -> None:
    code = """
for _ in range(200):
    os.mkdir("d"); os.chdir("d")
open("deep", "w").write("x")
"""
    result = await case.run(code, collect=["."])
    assert result.status is Status.OK, described(result)
    assert result.files == {}
    assert result.skipped_files
    assert await case.sandbox.list_files() == {}
    await must.fail(OSError, case.sandbox.read_file("/".join(["d"] * 300)))
    shell = ["bash", "-c", "rm -rf d"]
    assert (await case.sandbox.exec(shell)).ok


@attack(landlock=True)
async def more_files_than_anybody_wants(case: Case) -> None:
    count, size, most, most_mb = 900, 1000, 256, 16
    if case.in_image:  # from which a large project may be collected
        count, size, most, most_mb = 12_000, 8000, 10_000, 64
        case.limits = replace(case.limits, disk_mb=256)
        await case.renew()
    code = f"for n in range({count}): open(f'f{{n}}', 'wb').write(bytes({size}))"
    started = time.perf_counter()
    result = await case.run(code, collect=["."])
    assert result.status is Status.OK, described(result)
    assert result.files
    assert len(result.files) <= most
    assert len(result.files) + len(result.skipped_files) <= 10_001
    assert sum(map(len, result.files.values())) <= most_mb << 20
    case.must_be_soon(started, within_s=30)
    await case.run(RESTORE)


@attack()
async def folder_and_link_in_turns(case: Case) -> None:
    """A session swaps a folder for a link as fast as it can while the host reads through it."""
    session = await case.sandbox.open_session()
    swap = """
import os, threading
def swap():
    os.makedirs("real", exist_ok=True); open("real/passwd", "w").write("mine")
    os.symlink("/etc", "fake")
    while True:
        for name in ("real", "fake"):
            try: os.rename(name, "d"); os.rename("d", name)
            except OSError: pass
threading.Thread(target=swap, daemon=True).start()
"""
    assert (await session.run(swap)).ok
    seen = set()
    for _ in range(300):
        try:
            seen.add(await case.sandbox.read_file("d/passwd"))
        except OSError:
            seen.add(b"refused")
        await case.sandbox.list_files()
    assert seen <= {b"mine", b"refused"}
    for _ in range(5):
        result = await case.run("pass", collect=["."])
        assert set(result.files.values()) <= {b"mine"}
    await session.close()
    await case.run(RESTORE)


@attack(landlock=True)
async def leases_and_locks_on_files(case: Case) -> None:
    """A lease makes an open wait for its holder, up to 45 s: not this host's."""
    session = await case.sandbox.open_session()
    code = """
import fcntl, os, signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
open("leased", "w").write("x"); a = os.open("leased", os.O_RDWR)
b = os.open("leased", os.O_RDWR); fcntl.flock(b, fcntl.LOCK_EX); os.close(b)
try: fcntl.fcntl(a, fcntl.F_SETLEASE, fcntl.F_WRLCK); print("leased")
except OSError as error: print(error)
"""
    assert (await session.run(code)).ok
    async with asyncio.timeout(14 * case.arena.patience):
        with contextlib.suppress(OSError):
            await case.sandbox.read_file("leased")
        await case.sandbox.list_files()
    await session.close()
    await case.run(RESTORE)
