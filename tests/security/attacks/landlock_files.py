"""Without namespaces: the machine's other files, and a work folder on its disk."""

import asyncio
import contextlib
import json
import os
import tempfile
import time
from pathlib import Path

import pytest_free as must
from arena import LANDLOCK_MODES, PWNED, SETTLE_S, Case, all_are, attack, described

from agentgym_rl.core import SandboxError
from agentgym_rl.gym import Sandbox
from agentgym_rl.gym.sandbox_records import Status


def own_files() -> list[Path]:
    """Folders of this host's slots, on its disk."""
    return sorted(Path(tempfile.gettempdir()).glob("arl-box-*"))


@attack(modes=LANDLOCK_MODES)
async def a_file_that_is_somebody_elses(case: Case) -> None:
    """Of the same user where that is no root; not a bit of it may change, nor be known."""
    target = case.arena.canary / "answers.txt"
    os.chmod(target, 0o666)  # the control: its owner may
    os.utime(target, (1, 1))
    before = os.stat(target), os.stat(target.parent)
    await all_are(case, f"""
secret, folder = {str(target)!r}, {str(target.parent)!r}
new = folder + "/{PWNED}"
O = os.O_WRONLY
for name, flags in {{"read": 0, "write": O, "append": O | os.O_APPEND, "both": 2,
    "truncate": O | os.O_TRUNC, "create": O | os.O_CREAT, "folder": os.O_DIRECTORY}}.items():
    T("open " + name, lambda: os.open(folder if name == "folder" else secret, flags))
T("new", lambda: os.open(new, O | os.O_CREAT))
T("unnamed", lambda: os.open(folder, O | os.O_TMPFILE))
T("truncate", lambda: os.truncate(secret, 0)); T("chmod", lambda: os.chmod(secret, 0o600))
T("chmod folder", lambda: os.chmod(folder, 0o700)); T("chown", lambda: os.chown(secret, -1, -1))
T("lchown", lambda: os.lchown(secret, os.getuid(), os.getgid()))
T("utime", lambda: os.utime(secret, (5, 5))); T("touch", lambda: os.utime(secret))
T("xattr", lambda: os.setxattr(secret, "user.x", b"1"))
T("xattr read", lambda: os.getxattr(secret, "user.x")); T("xattrs", lambda: os.listxattr(secret))
T("xattr off", lambda: os.removexattr(secret, "user.x"))
T("rename", lambda: os.rename(secret, new)); T("rename in", lambda: os.rename(secret, "in"))
open("mine", "w").write("x"); os.mkdir("dir")
T("rename out", lambda: os.rename("mine", new)); T("rename over", lambda: os.rename("mine", secret))
T("rename dir", lambda: os.rename("dir", new)); T("link in", lambda: os.link(secret, "stolen"))
T("link out", lambda: os.link("mine", new)); T("unlink", lambda: os.unlink(secret))
T("rmdir", lambda: os.rmdir(folder)); T("mkdir", lambda: os.mkdir(new))
T("symlink", lambda: os.symlink("mine", new)); T("mknod", lambda: os.mknod(new))
T("list", lambda: os.listdir(folder)); T("scan", lambda: list(os.scandir(folder)))
T("inside", lambda: (os.chdir(folder), os.open("answers.txt", 0)))
place = os.open(secret, os.O_PATH)
T("by handle", lambda: os.open(f"/proc/self/fd/{{place}}", 0))
T("chmod by handle", lambda: os.chmod(f"/proc/self/fd/{{place}}", 0))
S("fchmodat2", 452, place, 0, 0, 0x1000)
libc.inotify_init1.restype = ctypes.c_int
S("inotify", 294 if os.uname().machine == "x86_64" else 26, 0)
os.chdir(os.environ["HOME"]); os.unlink("mine"); os.rmdir("dir")
""", {"EPERM", "EACCES", "EXDEV"})  # fmt: skip
    after = os.stat(target), os.stat(target.parent)
    for one, other in zip(before, after, strict=True):
        assert (one[:7], one.st_mtime_ns, one.st_ctime_ns) == (
            other[:7], other.st_mtime_ns, other.st_ctime_ns,
        )  # fmt: skip


@attack(modes=LANDLOCK_MODES)
async def attributes_of_what_may_be_read(case: Case) -> None:
    """A handle that only reads is enough for a file's owner: of an interpreter at home, say."""
    await all_are(case, """
import fcntl
for path in (os.__file__, ".", "own"):
    if path == "own": open("own", "w").close()
    fd = os.open(path, os.O_RDONLY)
    T("chmod " + path, lambda: os.chmod(fd, 0)); T("chown " + path, lambda: os.chown(fd, -1, -1))
    T("utime " + path, lambda: os.utime(fd))
    T("xattr " + path, lambda: os.setxattr(fd, "user.x", b""))
    T("path " + path, lambda: os.chmod(path, 0o777))
    for number in (0x40086602, 0x401c5820, 0x40046604, 0xc0185879, 0x5452):
        T(f"ioctl {number:x} {path}", lambda: fcntl.ioctl(fd, number, bytes(64)))
""", {"EPERM"})  # fmt: skip


@attack(modes=LANDLOCK_MODES)
async def places_everybody_may_write(case: Case) -> None:
    """And the launcher's own folder, around the box."""
    await all_are(case, f"""
box = os.getcwd()
top = os.path.dirname(box)
for place in ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock", "/run/user", "/", top,
    top + "/trash", top + "/packages", os.path.dirname(top), "/root", "/home", "..", "../.."):
    T("list " + place, lambda: os.listdir(place))
    for name, act in {{"open": lambda p: open(p, "w"), "mkdir": os.mkdir,
        "link": lambda p: os.symlink("x", p)}}.items():
        T(f"{{name}} {{place}}", lambda: act(place + "/{PWNED}"))
T("box itself", lambda: os.rename(box, top + "/box2")); T("rmdir", lambda: os.rmdir(box))
from multiprocessing import shared_memory
T("shared memory", lambda: shared_memory.SharedMemory(create=True, size=64))
""", {"EACCES", "EPERM", "ENOENT", "ENOTDIR", "EXDEV"})  # fmt: skip
    assert len(own_files()) >= 1  # they are there


@attack(modes=LANDLOCK_MODES)
async def links_out_of_the_box(case: Case) -> None:
    """What they lead to is no more to be had through them than without, on either side."""
    target = case.arena.canary / "answers.txt"
    code = f"""
secret, folder = {str(target)!r}, {str(target.parent)!r}
os.symlink(secret, "file"); os.symlink(folder, "folder"); os.symlink("/", "root")
os.symlink("loop", "loop"); os.symlink("../../" , "up"); os.symlink("/proc/self/fd/0", "zero")
for path in ("file", "folder/answers.txt", "root" + secret, "up/x", "loop", "folder"):
    T(path, lambda: os.close(os.open(path, os.O_RDONLY)))
    T("write " + path, lambda: os.close(os.open(path, os.O_WRONLY)))
T("move", lambda: (open("mine", "w").close(), os.rename("mine", "folder/{PWNED}")))
T("pipe", lambda: os.mkfifo("fifo")); T("device", lambda: os.mknod("dev", 0o20666, 0x103))
T("socket", lambda: os.mknod("sock", 0o140666))
os.unlink("mine")
end()
"""
    result = await case.run(code, collect=["."])
    assert result.status is Status.OK, described(result)
    refused = {"EACCES", "EPERM", "ENOENT", "ELOOP", "EXDEV", "EISDIR"}
    assert set(json.loads(result.stdout).values()) <= refused, result.stdout
    assert result.files == {}
    assert {item.path for item in result.skipped_files} >= {"file", "folder", "root", "up"}
    for path in ("file", "folder/answers.txt", "root/etc/passwd", "zero"):
        await must.fail(OSError, case.sandbox.read_file(path))
    await must.fail(SandboxError, case.sandbox.write_files({f"folder/{PWNED}": b"x"}))
    await case.sandbox.write_files({"file": b"instead"})
    assert await case.sandbox.read_file("file") == b"instead"
    await case.run("for name in os.listdir('.'): os.unlink(name)")


@attack(modes=LANDLOCK_MODES)
async def trees_that_are_hard_to_remove(case: Case) -> None:
    """Deep (deeper: test_local_boxes.py), many, closed, with odd names, links that lead out."""
    target = case.arena.canary
    code = f"""
import sys
box = os.getcwd()
names = b"a\\nb", b"-rf", b" ", b"\\xff\\xfe", b"*", b"...", b"a" * 255, b"trash", b"box"
for name in names:
    os.mkdir(name); os.symlink({str(target)!r}, name + b"/out")
    open(name + b"/answers.txt", "w").close()
for n in range(20): os.mkdir(f"closed{{n}}", 0)
os.mkdir("write-only", 0o300); os.mkdir("write-only/in", 0o100)
os.mkdir("no-entry", 0o600)
os.symlink({str(target)!r}, "out"); os.symlink({str(target / "answers.txt")!r}, "answers.txt")
for n in range(3000): os.symlink({str(target)!r}, f"l{{n}}")
for _ in range(1500): os.mkdir("d"); os.chdir("d")
open("deep", "w").close()
os.umask(0o777); os.mkdir("e")
print("made")
"""
    result = await case.run(code, collect=["."])
    assert (result.status, result.stdout) == (Status.OK, b"made\n"), described(result)
    before = await box_of(case.sandbox)
    started = time.perf_counter()
    sandbox = await case.renew()
    assert await sandbox.list_files() == {}
    case.must_be_soon(started, within_s=30)
    assert (await sandbox.run_python("import os; print(os.listdir('.'))")).stdout == b"[]\n"
    trash = Path(before).parent / "trash"
    async with asyncio.timeout(SETTLE_S * case.arena.patience):
        while os.listdir(trash):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.02)


async def box_of(sandbox: Sandbox) -> str:
    return (await sandbox.run_python("import os; print(os.environ['HOME'])")).stdout_text.strip()


@attack(modes=LANDLOCK_MODES)
async def the_box_emptied_and_gone_from_under_it(case: Case) -> None:
    result = await case.run("""
T("rmdir", lambda: os.rmdir(os.environ["HOME"]))
os.mkdir("sub"); os.chdir("sub"); os.rmdir(os.environ["HOME"] + "/sub")
T("cwd", os.getcwd)
end()
""")
    assert result.status is Status.OK, described(result)
    assert await case.sandbox.list_files() == {}


@attack(modes=LANDLOCK_MODES)
async def room_that_no_limit_counts(case: Case) -> None:
    said = await case.tries("""
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
fd = os.open("f", os.O_RDWR | os.O_CREAT)
number = 285 if os.uname().machine == "x86_64" else 47
for mode in (1, 2, 3, 8, 16, 0x20): S(f"mode {mode}", number, fd, mode, 0, 64 << 20)
S("plain", number, fd, 0, 0, 64 << 20)
T("truncate", lambda: os.ftruncate(fd, 64 << 20)); T("seek", lambda: os.pwrite(fd, b"x", 64 << 20))
R["blocks"] = str(os.fstat(fd).st_blocks)
os.unlink("f")
""")
    assert said.pop("blocks") == "0"
    assert set(said.values()) == {"ENOTSUP", "EFBIG"}, said


@attack(modes=LANDLOCK_MODES)
async def folder_and_link_in_turns_by_a_cell(case: Case) -> None:
    """A cell swaps a folder for a link as fast as it can while the host reads through it."""
    session = await case.sandbox.open_session()
    swap = f"""
import os, time
os.makedirs("real", exist_ok=True); open("real/answers.txt", "w").write("mine")
os.symlink({str(case.arena.canary)!r}, "fake")
until = time.time() + 1.0
while time.time() < until:
    for name in ("real", "fake"): os.rename(name, "d"); os.rename("d", name)
"""
    async with asyncio.TaskGroup() as tasks:
        swapping = tasks.create_task(session.run(swap))
        seen = set()
        while not swapping.done():
            with contextlib.suppress(OSError):
                seen.add(await case.sandbox.read_file("d/answers.txt"))
            await case.sandbox.list_files()
    assert swapping.result().ok, described(swapping.result())
    assert seen <= {b"mine"}
    await session.close()
    await case.run("import shutil; shutil.rmtree('real'); os.unlink('fake')")
