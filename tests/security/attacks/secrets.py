"""Reading what is not meant for programs: the host's, the neighbour's, the launcher's."""

import contextlib
import os
import re
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

from arena import Case, attack, described

from agentgym_rl.gym.sandbox_records import Status


@attack(gvisor=True)
async def the_hosts_environment(case: Case) -> None:
    code = """
found = repr(dict(os.environ))
for name in os.listdir("/proc"):
    try: found += open(f"/proc/{name}/environ").read()
    except OSError: pass
libc.getenv.restype = ctypes.c_char_p
print(found, libc.getenv(b"ARL_SECURITY_SECRET"))
"""
    result = await case.run(code)
    assert result.status is Status.OK, described(result)
    assert case.arena.secret not in result.stdout_text
    assert "ARL_SECURITY_SECRET" not in result.stdout_text
    assert os.environ["ARL_SECURITY_SECRET"] == case.arena.secret  # it was there to be had


@attack(landlock=True)
async def the_hosts_files(case: Case) -> None:
    canary = str(case.arena.canary)
    said = await case.tries(f"""
for path in ({canary!r}, "/root", "/home", "/work", "/etc/shadow", "/etc/ssh", "/var", "/run",
    "/sys", "/mnt", "/media", "/opt", "/srv", "/boot", "/etc/resolv.conf", "/etc/machine-id",
    "/old", "/tmp/" + os.path.basename({canary!r}), "/proc/kallsyms", "/proc/net", "/proc/meminfo",
    "/proc/keys", "/proc/config.gz", "/proc/version", "/proc/sys", "/proc/cmdline"):
    T(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path).read(64))
""")
    python = case.arena.python_prefix
    shown = {path for path, what in said.items() if what not in ("ENOENT", "EACCES")}
    allowed = {path for path in shown if python.startswith(path + "/")}
    if case.in_container:  # of its image, and of the kernel
        allowed = {"/var", "/sys", *(path for path in shown if path.startswith("/proc/"))}
        allowed |= {path for path in shown if said[path] in ("[]", "''")}
    if case.in_image:  # whose folders have its own files
        own = {"/var": "['tmp']", "/opt": "['arl']"}
        allowed |= {path for path in shown if said[path] == own.get(path, "[]")}
    assert shown <= allowed, {path: said[path] for path in shown - allowed}
    result = await case.run("""
for top, folders, files in os.walk("/"):
    if top in ("/usr", "/proc", "/sys") or top.startswith(sys.base_prefix):
        folders.clear(); continue
    for name in files if "/dev" not in top else ():
        try: print(open(os.path.join(top, name), errors="replace").read(4096))
        except OSError: pass
""")
    assert case.arena.secret not in result.stdout_text


@attack(landlock=True)
async def answers_in_installed_packages(case: Case) -> None:
    """Our own wheel has reference solutions, and may be installed beside the interpreter."""
    with planted_modules(case.arena.python_prefix) as paths:
        assert paths or os.getuid(), "there is no folder of packages to plant anything in"
        said = await case.tries(f"""
import importlib, importlib.util, subprocess
for path in {paths!r}:
    folder, name = os.path.split(path)
    T("open " + path, lambda: open(path).read(64)); T("handle " + path, lambda: os.open(path, 0))
    T("from " + folder, lambda: (os.chdir(folder), open(name).read(64)))
    os.chdir(os.environ["HOME"])
    os.symlink(folder, "way"); T("link " + path, lambda: open("way/" + name).read(64))
    T("hard link " + path, lambda: (os.link(path, "copy"), open("copy").read(64))); os.unlink("way")
    sys.path.insert(0, folder); importlib.invalidate_caches()
    T("import " + path, lambda: importlib.import_module(name[:-3])); del sys.path[0]
    spec = importlib.util.spec_from_file_location("found", path)
    T("load " + path, lambda: spec.loader.exec_module(importlib.util.module_from_spec(spec)))
    for cached in (importlib.util.cache_from_source(path), path + "c"):
        T("cached " + cached, lambda: open(cached, "rb").read(64))
    above, inner = os.path.dirname(folder), os.path.basename(folder) + "/" + name
    T("by handle " + path, lambda: open(f"/proc/self/fd/{{os.open(above, os.O_PATH)}}/{{inner}}"))
    T("another Python " + path, lambda: subprocess.run(["/usr/bin/python3", "-c",
        f"import sys; sys.path.append({{folder!r}}); import {{name[:-3]}}"],
        check=True, capture_output=True))
R["none"] = "ENOENT"
""")
    refused = {"ENOENT", "EACCES", "EPERM", "EXDEV", "ModuleNotFoundError", "CalledProcessError"}
    assert set(said.values()) <= refused, {k: v for k, v in said.items() if v not in refused}


@contextlib.contextmanager
def planted_modules(prefix: str) -> Iterator[list[str]]:
    """In each folder of packages of the interpreters that programs see, where this user may."""
    name = f"arl_planted_{secrets.token_hex(8)}.py"
    planted: list[Path] = []
    try:
        for top in {Path(prefix), Path("/usr"), Path("/usr/local")}:
            for folder in top.glob("lib/python*/*-packages"):
                with contextlib.suppress(PermissionError):
                    (folder / name).write_text("answer = 42")
                    planted.append(folder / name)
        yield [str(path) for path in planted] or some_module(prefix)
    finally:
        for path in planted:
            path.unlink()


def some_module(prefix: str) -> list[str]:
    """One that is installed there."""
    found = Path(prefix).glob("lib/python*/*-packages/*.py")
    return [str(path) for path in found][:1]


@attack()
async def the_hosts_processes(case: Case) -> None:
    said = await case.tries(f"""
numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
R["numbers"] = "own" if set(numbers) <= {{1, os.getpid()}} else str(len(numbers))
T("driver", lambda: os.kill({os.getpid()}, 0) if {os.getpid()} not in numbers else None)
""")
    # In a container process 1 and the one that forked this are seen, and what that needed to fork.
    assert said["numbers"] == "own" or (case.in_container and int(said["numbers"]) <= 4)
    assert said["driver"] in ("ESRCH", "None", "EPERM")


@attack()
async def the_hosts_name_and_groups(case: Case) -> None:
    said = await case.tries("""
R["name"] = socket.gethostname()
R["node"] = os.uname().nodename
R["cgroup"] = str({line.rpartition(":")[2] for line in open("/proc/self/cgroup").read().split()})
R["uid"] = str((os.getuid(), os.getgid(), [g for g in os.getgroups() if g != 65534]))
""")
    assert said["name"] == said["node"] == "sandbox" != socket.gethostname()
    assert said["cgroup"] == "{'/'}"
    if case.in_container:
        user = re.fullmatch(r"\((\d+), \1, (\[\]|\[\1\])\)", said["uid"])
        assert user, said
        assert int(user[1]) >= 300_000
    else:
        assert said["uid"] in ("(0, 0, [])", "(0, 0, [0])")


@attack()
async def the_neighbours(case: Case) -> None:
    """Another slot's files, abstract sockets, System V objects and processes."""
    async with case.arena.neighbour() as other:
        session = await other.open_session()
        planted = await session.run("""
import socket, os
open("/box/n-secret", "w").write("NEIGHBOUR"); open("/tmp/n-secret", "w").write("NEIGHBOUR")
s = socket.socket(socket.AF_UNIX); s.bind("\\0neighbour"); s.listen()
try: t = socket.socket(); t.bind(("127.0.0.1", 7777)); t.listen()
except OSError: pass
""")
        assert planted.ok, described(planted)
        said = await case.tries("""
T("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\\0neighbour"))
T("tcp", lambda: socket.create_connection(("127.0.0.1", 7777), 1))
for path in ("/box/n-secret", "/tmp/n-secret"): T(path, lambda: open(path).read())
R["numbers"] = str(len([p for p in os.listdir("/proc") if p.isdigit()]))
""")
    own = int(said.pop("numbers"))
    tcp = "ECONNREFUSED" if case.in_container or case.in_image else "EAFNOSUPPORT"
    assert own <= (4 if case.in_container else 1)
    assert said == {
        "abstract": "ECONNREFUSED", "tcp": tcp,
        "/box/n-secret": "ENOENT", "/tmp/n-secret": "ENOENT",
    }  # fmt: skip


@attack(landlock=True)
async def open_handles(case: Case) -> None:
    """0, 1, 2 and nothing else; a session also has its own socket."""
    code = """
def handles():
    found = []
    for fd in range(0, 4096):
        try: os.fstat(fd); found.append(fd)
        except OSError: pass
    return found
print(handles())
"""
    assert (await case.run(code)).stdout == b"[0, 1, 2]\n"
    if not case.by_landlock:
        shell = "for n in /proc/self/fd/*; do readlink $n; done | grep -c -v /proc"
        result = await case.sandbox.exec(["bash", "-c", shell])
        # 4: the pipe of this very line
        assert result.stdout.strip() in (b"3", b"4"), described(result)
    session = await case.sandbox.open_session()
    assert (await session.run("import os\n" + code)).stdout == b"[0, 1, 2, 3]\n"
    await session.close()


@attack(landlock=True)
async def standard_input_written_to(case: Case) -> None:
    """Its bytes are the host's memory; a program may not make them grow."""
    said = await case.tries(
        """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def grow():
    with open("/proc/self/fd/0", "r+b", 0) as file:
        file.seek(0, 2)
        for _ in range(64): file.write(bytes(1 << 20))
T("grow", grow)
R["size"] = str(os.fstat(0).st_size)
""",
        stdin=b"12345",
    )
    assert int(said["size"]) <= case.limits.file_mb << 20, said
    assert said["grow"] != "None"


@attack()
async def through_the_mount_table(case: Case) -> None:
    """What is mounted is known, but every mount that is not the work folder is read-only."""
    if case.in_container:  # some are writable for root, whom nobody can become
        said = await case.tries("""
for line in open("/proc/self/mountinfo"):
    place = line.split()[4]
    masked = os.stat(place).st_rdev == os.stat("/dev/null").st_rdev
    if place not in ("/box", "/tmp", "/dev/shm") and not masked:
        T(place, lambda: open(place + "/arl-pwned" if os.path.isdir(place) else place, "a"))
""")
        assert said.pop("/dev/mqueue", "EMFILE") == "EMFILE"  # no room in any queue
        assert set(said.values()) <= {"EACCES", "EPERM", "EROFS", "ENOENT"}, said
        return
    code = (
        f"OWN = {[('/', 'overlay')] * case.in_image}"
        + """
for line in open("/proc/self/mountinfo"):
    fields = line.split()
    kind = line.split(" - ")[1].split()[0]
    writable = "rw" in fields[5].split(",") and (fields[4], kind) not in OWN
    if writable and not fields[4].startswith(("/box", "/tmp", "/dev/")): print(fields[4], kind)
    if "nosuid" not in fields[5] and not fields[4].startswith("/dev/"): print(fields[4], "suid")
"""
    )
    result = await case.run(code)
    assert result.stdout == b"", described(result)
