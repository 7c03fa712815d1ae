"""Leaving something for the next: run, episode, or neighbour."""

import json
import math
import random
import struct
from typing import Any

from arena import Case, attack, described

from agentgym_rl.gym.sandbox_records import Status


@attack(gvisor=True)
async def files_for_the_next_episode(case: Case) -> None:
    await case.run("""
for folder in ("/box", "/tmp", "/dev/shm", "/box/.tmp", "/box/.shm"):
    open(folder + "/left", "w").write("x"); os.makedirs(folder + "/a/b", exist_ok=True)
""")
    sandbox = await case.renew()
    assert await sandbox.list_files() == {}
    said = await case.run("print(os.listdir('/box'), os.listdir('/tmp'), os.listdir('/dev/shm'))")
    assert said.stdout_text.split("]")[1:] == [" [", " [", "\n"], described(said)


@attack()
async def processes_for_the_next_run(case: Case) -> None:
    code = """
for _ in range(6):
    if os.fork() == 0:
        os.setsid()
        while True: open("/box/alive", "a").write("x"); time.sleep(0.001)
while not os.path.exists("/box/alive"): time.sleep(0.01)
"""
    result = await case.run(code)
    assert result.killed_processes == 6
    look = "a = os.path.getsize('alive') if os.path.exists('alive') else 0; time.sleep(0.1)\n"
    look += "print((os.path.getsize('alive') if a else 0) - a)"
    assert (await case.run(look)).stdout == b"0\n"
    await case.sandbox.exec(["rm", "-f", "alive"])


@attack()
async def abstract_sockets_for_the_next_run(case: Case) -> None:
    code = """
s = socket.socket(socket.AF_UNIX); s.bind("\\0left"); s.listen()
if os.fork() == 0:
    os.setsid()
    while True: s.accept()[0].send(b"secret")
"""
    assert (await case.run(code)).status is Status.OK
    said = await case.tries('T("c", lambda: socket.socket(socket.AF_UNIX).connect("\\0left"))')
    assert said == {"c": "ECONNREFUSED"}


@attack(not_docker="a container has one set of counters for its life: see `order_of` of grader.py")
async def counters_for_the_next_program(case: Case) -> None:
    """Each is moved as far as it goes; the next program finds all of them where they were."""
    read = """
R["spent"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw, os.times().children_user < 1
R["number"] = os.getpid(), os.readlink("/proc/self"), os.readlink("/proc/thread-self")
child = os.fork()
if child == 0: os._exit(0)
os.wait()
R["child"] = child
thread = threading.Thread(target=lambda: R.update(thread=threading.get_native_id()))
thread.start(); thread.join()
for name in ("snmp", "snmp6", "netstat", "netlink", "packet", "dev"):
    try: R[name] = open("/proc/self/net/" + name).read().replace(str(os.getpid()), "")
    except OSError as error: R[name] = error.errno
open("new", "w").close(); os.mkdir("folder")
about = os.stat("new")
R["file"] = about.st_ino, about.st_nlink, os.stat("folder").st_ino, os.stat(".").st_ino
room = os.statvfs(".")
R["room"] = room.f_bfree, room.f_ffree, room.f_files
R["timer"] = libc.syscall(222, 1, None, ctypes.byref(ctypes.c_int())), os.nice(0)
R["views"] = {name: os.readlink("/proc/self/ns/" + name) for name in os.listdir("/proc/self/ns")}
R["mounts"] = [line.split()[4:6] for line in open("/proc/self/mountinfo")]
"""
    head = "import ctypes, resource, threading\n"
    moves = {
        "processes": "for _ in range(50):\n if os.fork() == 0: os._exit(0)\n os.wait()",
        "threads": "for _ in range(50): t = threading.Thread(); t.start(); t.join()",
        "left behind": "for _ in range(9):\n if os.fork() == 0: time.sleep(99)",
        "files": "for n in range(500): open(str(n), 'w').write('x' * 9000); os.mkdir(f'd{n}')",
        "unix": "for _ in range(500): a = socket.socket(socket.AF_UNIX); a.bind('')",
        "network": "for _ in range(500):\n try: socket.socket(2, 2).sendto(b'x', ('10.9.8.7', 9))\n"
        " except OSError: pass",
    }
    before = without_numbers(case, await case.tries(head + read))
    # In a crowd the next sandbox may be in another slot, with namespaces and sockets of its own.
    for name in ("netlink", "views") if case.arena.crowded and not case.in_image else ():
        del before[name]
    wrong = {}
    for name, move in moves.items():
        await case.renew()
        moved = await case.run(f"{head}{move}")
        assert moved.ok or name == "unix", described(moved)  # as it has no more handles
        await case.renew()
        after = without_numbers(case, await case.tries(head + read))
        wrong |= {
            (name, key): (before[key], after[key]) for key in before if before[key] != after[key]
        }
    assert not wrong, wrong


def without_numbers(case: Case, said: dict[str, Any]) -> dict[str, Any]:
    """What of it must be the same in the next sandbox.

    One with an image has namespaces of its own, in which the kernel makes sockets: the machine's
    numbers for these say how many others it has made, and are in docs/security.md.
    """
    if case.in_image:
        assert len(said.pop("views")) >= 8
        sockets = [line.split() for line in said["netlink"].splitlines()]
        assert (sockets[0][0], sockets[0][-1]) == ("sk", "Inode")
        said["netlink"] = [columns[1:-1] for columns in sockets]
    return said


@attack(landlock=True)
async def figures_of_the_program_before(case: Case) -> None:
    """The seconds it used, as the launcher saw them, are not in the memory of the next one."""
    code = """
masked = [bytes.fromhex(word) for word in sys.stdin.read().split()]
wanted = [bytes(byte ^ 90 for byte in word) for word in masked]
memory = open("/proc/self/mem", "rb", buffering=0)
counts = [0] * len(wanted)
for line in open("/proc/self/maps"):
    words = line.split()
    if words[1][:2] != "rw": continue
    start, end = (int(word, 16) for word in words[0].split("-"))
    try: memory.seek(start); found = memory.read(end - start)
    except (OSError, ValueError, OverflowError): continue
    for at, word in enumerate(wanted): counts[at] += found.count(word)
print(counts)
"""
    for milliseconds in (20, 90, 40):
        burn = f"while time.process_time() < {milliseconds / 1000}: pass"
        cpu_s = (await case.run(burn)).cpu_ms / 1000
        near = [cpu_s, math.nextafter(cpu_s, 0), math.nextafter(cpu_s, 9)]
        words = [struct.pack("<d", value) for value in [*near, random.random()]]
        stdin = " ".join(bytes(byte ^ 90 for byte in word).hex() for word in words).encode()
        await case.renew()
        result = await case.run(code, stdin=stdin)
        if case.by_landlock:  # where files of /proc are closed
            assert "PermissionError" in result.stderr_text, described(result)
            return
        *counts, control = json.loads(result.stdout)
        assert counts == [control] * 3, (counts, control)
        await case.renew()


@attack(landlock=True)
async def pages_of_the_machines_files(case: Case) -> None:
    """Which of them are in memory all programs share: none may ask, or drop one."""
    said = await case.tries("""
import mmap
file = os.open(os.path.dirname(os.__file__) + "/pydoc_data/topics.py", os.O_RDONLY)
T("at once", lambda: os.preadv(file, [bytearray(1)], 1 << 17, os.RWF_NOWAIT))
T("drop", lambda: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED))
pages = mmap.mmap(file, 0, prot=mmap.PROT_READ)
T("page out", lambda: pages.madvise(21))
S("in memory", *((27, 0) if os.uname().machine == "x86_64" else (232, 0)), 4096, 0)
S("counted", 451, file, 0, 0, 0)
R["read"] = os.preadv(file, [bytearray(1)], 1 << 17)
""")
    assert said.pop("page out") in ("EINVAL", "None"), said
    assert said.pop("read") == 1
    assert set(said.values()) <= {"ENOSYS", "ENOTSUP"}, said


@attack(
    not_docker="its sockets of the INET families lead to its own loopback device",
    not_image="it has such a device, too, and its slot is nobody else's",
)
async def numbers_of_sockets(case: Case) -> None:
    said = await case.tries("""
one, two = socket.socketpair()
T("cookie", lambda: one.getsockopt(socket.SOL_SOCKET, 57, 8))
T("kind", lambda: one.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE))
for family in (2, 10, 16, 17, 40): T(str(family), lambda: socket.socket(family, 2))
""")
    assert (said.pop("cookie"), said.pop("kind")) == ("ENOPROTOOPT", "1")
    assert set(said.values()) == {"EAFNOSUPPORT"}


@attack(landlock=True)
async def changed_modules_and_environment(case: Case) -> None:
    await case.run("""
import builtins, io, random
builtins.print = builtins.open = json.dumps = lambda *a, **k: "patched"
os.environ["LEFT"] = "1"; os.putenv("LEFT", "1"); sys.modules["math"] = None; sys.argv[:] = ["x"]
sys.path[:0] = ["/tmp"]; sys.stdout.close(); os.umask(0o777); os.chdir("/tmp")
""")
    places = 'os.getcwd() == os.environ["HOME"]'
    if case.in_image:
        places = '(os.getcwd(), os.environ["HOME"]) == ("/box", "/root")'
    code = f"""
import math, random
print(json.dumps([os.environ.get("LEFT"), math.sqrt(4), sys.argv, "/tmp" in sys.path,
    {places}, os.umask(0)]))
"""
    result = await case.run(code)
    assert json.loads(result.stdout) == [None, 2.0, ["main.py"], False, True, 0o022]


@attack(landlock=True)
async def files_named_like_the_standard_library(case: Case) -> None:
    """An earlier program must not answer for the libraries that a later one uses."""
    names = ["json", "random", "colorsys", "sitecustomize", "usercustomize", "os", "site", "queue"]
    files = {f"{name}.py": b"raise SystemExit('poisoned')" for name in names}
    await case.sandbox.write_files(files | {"x.pth": b"import colorsys", ".pdbrc": b"x"})
    result = await case.run("import colorsys, queue, random, site; print('clean')")
    assert (result.status, result.stdout) == (Status.OK, b"clean\n"), described(result)
    if not case.by_landlock:
        fresh = await case.sandbox.exec(["python3", "-I", "-c", "import colorsys; print('clean')"])
        assert fresh.exit_code == 127 or fresh.stdout == b"clean\n", described(fresh)
    await case.run(f"for name in {sorted([*files, 'x.pth', '.pdbrc'])!r}: os.unlink(name)")


@attack(landlock=True)
async def the_same_random_numbers(case: Case) -> None:
    code = """
import random, uuid, tempfile, secrets
print(random.random(), uuid.uuid4(), uuid.uuid1().time, secrets.token_hex(), os.urandom(8).hex(),
    tempfile.mktemp(), random.SystemRandom().random(), random.Random().random())
"""
    draws = [(await case.run(code)).stdout_text.split() for _ in range(3)]
    await case.renew()
    draws += [(await case.run(code)).stdout_text.split() for _ in range(2)]
    for values in zip(*draws, strict=True):
        assert len(set(values)) == len(draws), values


@attack()
async def the_work_folder_ruined(case: Case) -> None:
    """In its own sandbox a program may delete all it likes; the next one has everything again."""
    code = """
import shutil
REFUSED = (errno.EBUSY, errno.EROFS, errno.EACCES, errno.EXDEV)
for name in os.listdir("/box"): shutil.rmtree("/box/" + name, ignore_errors=True)
for folder in ("/box", "/tmp", "/dev/shm"):
    os.symlink("/etc", folder + "/etc") if os.access(folder, os.W_OK) and folder == "/box" else 0
    try: os.chmod(folder, 0)
    except OSError: pass
for pair in (("/box", "/box2"), ("/tmp", "/box/tmp")):
    try: os.rename(*pair)
    except OSError as error: assert error.errno in REFUSED, error
os.chmod("/box", 0o700)
os.symlink("/etc", "/box/.tmp"); os.symlink("/usr", "/box/.shm")
"""
    result = await case.run(code)
    assert result.status is Status.OK, described(result)
    assert set(await case.sandbox.list_files()) == set()
    await case.renew()
    await case.arena.check_honest(case.sandbox, case.limits)


@attack(landlock=True)
async def own_modules_of_the_launcher(case: Case) -> None:
    """What the launcher is made of is no part of a program's world, under its names at least."""
    names = ("kernel", "program", "session", "wire", "root", "work_folders", "landlock")
    names += ("landlock_seccomp", "namespace_server")
    files = {f"{name}.py": b"x = 7" for name in names}
    code = f"import {', '.join(names)}; print({' + '.join(f'{name}.x' for name in names)})"
    result = await case.sandbox.run_python(code, files=files)
    assert result.stdout == b"63\n", described(result)
    await case.run(f"import shutil\nfor name in {sorted(files)!r}: os.unlink(name)\n"
                   "shutil.rmtree('__pycache__', ignore_errors=True)")  # fmt: skip
