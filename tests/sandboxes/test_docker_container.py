"""What surrounds a program in a container; each is a trap somebody has walked into."""

import asyncio

import pytest
from arl_sandboxes.docker import container

from agentgym_rl.core import SandboxLost
from agentgym_rl.gym import Limits
from agentgym_rl.gym.sandbox_records import Status
from tests.kit.cases import cases

from .docker_daemon import Client, play, require_daemon


@pytest.fixture(scope="module", autouse=True)
def _daemon():
    require_daemon()


@pytest.fixture
def client():
    found = Client()
    yield found
    found.api.close()


def run(code, **options):
    async def scenario(backend):
        async with await backend.create(limits=options.pop("limits", None)) as sandbox:
            return await sandbox.run_python(code, **options)

    return play(scenario)


def test_every_door_is_shut(client):
    async def scenario(backend):
        async with await backend.create():
            return await asyncio.to_thread(client.only)

    found = play(scenario, limits=Limits(memory_mb=100, disk_mb=20, processes=7))
    host, user = found["HostConfig"], int(found["Config"]["User"].split(":")[0])
    assert (host["NetworkMode"], host["ReadonlyRootfs"], host["CapDrop"]) == ("none", True, ["ALL"])
    assert (host["Privileged"], host["Binds"], host["AutoRemove"]) == (False, None, True)
    assert host["Memory"] == host["MemorySwap"] == (120 + container.OVERHEAD_MB) << 20
    assert (host["PidsLimit"], host["LogConfig"]["Type"], user >= 1000) == (11, "none", True)
    assert "no-new-privileges" in host["SecurityOpt"]


def test_status_of_the_process_says_so_too():
    status = run("print(open('/proc/self/status').read())").stdout_text
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) == 0
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")


def test_an_interpreter_may_end_while_its_threads_run():
    """The image has the library that Linux loads only then."""

    async def scenario(backend):
        async with await backend.create() as sandbox:
            return await sandbox.exec(
                ["python3", "-c", "import ctypes; ctypes.CDLL('libgcc_s.so.1')"]
            )

    assert play(scenario).ok


def test_files_come_and_go_although_the_root_is_read_only():
    async def scenario(backend):
        async with await backend.create() as sandbox:
            await sandbox.write_files({"a/b": b"\0\xff"})
            outside = await sandbox.exec(["touch", "/x", "/usr/x", "/etc/x", "/dev/x", "/root/x"])
            return await sandbox.read_file("a/b"), outside.exit_code

    assert play(scenario) == (b"\0\xff", 1)


def test_the_work_folder_belongs_to_the_programs_alone():
    code = "import os\ns = os.stat('.')\nprint(oct(s.st_mode), s.st_uid == os.getuid())"
    assert run(code).stdout == b"0o40700 True\n"


def test_disk_is_bounded_for_all_folders_together():
    code = """
n = 0
for folder in ("/box", "/tmp", "/dev/shm"):
    try:
        for i in range(400): n += open(f"{folder}/{i}", "wb", 0).write(bytes(1 << 16))
    except OSError: pass
print(n)
"""
    written = int(run(code, limits=Limits(disk_mb=8)).stdout)
    assert 7 << 20 <= written <= 8 << 20


def test_a_daemonized_process_does_not_outlive_its_program():
    code = "import os, time\nif not os.fork():\n os.setsid()\n if not os.fork(): time.sleep(1000)"

    async def scenario(backend):
        async with await backend.create() as sandbox:
            result = await sandbox.run_python(code)
            return result.killed_processes, (await sandbox.exec(["ps", "-e", "-o", "args="])).stdout

    killed, processes = play(scenario)
    assert killed >= 1
    assert len(processes.splitlines()) == 3  # the runner, its fork server, and ps


def test_processes_are_counted_for_each_sandbox_apart():
    code = """
import os, time
n = 0
try:
    while n < 40:
        if not os.fork(): time.sleep(30)
        n += 1
except OSError: pass
print(n, flush=True); time.sleep(1)
"""

    async def scenario(backend):
        async with await backend.create() as first, await backend.create() as second:
            async with asyncio.TaskGroup() as tasks:
                runs = [s.run_python(code, limits=Limits(processes=12)) for s in (first, second)]
                each = [tasks.create_task(run) for run in runs]
            return [int(task.result().stdout) for task in each]

    assert play(scenario) == [11, 11]


@cases("family", [0, 3, 9, 16, 17, 38, 40, 44, 45, 1 << 20])
def test_sockets_that_lead_to_the_host_are_refused(family):
    code = f"""
import socket
try: socket.socket({family}, socket.SOCK_STREAM)
except OSError as error: print(error.errno)
"""
    assert run(code).stdout == b"97\n"


def test_there_is_no_network():
    code = """
import socket
for address in ("1.1.1.1", "172.17.0.1"):
    try: socket.create_connection((address, 80), 2)
    except OSError as error: print(error.errno)
"""
    assert run(code).stdout == b"101\n101\n"


REFUSED = {
    "unshare(user)": "libc.unshare(0x10000000)",
    "clone(new user)": "libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)",
    "mount": "libc.mount(b'none', b'/box', b'tmpfs', 0, b'')",
    "ptrace the runner": "libc.ptrace(16, 1, 0, 0)",
    "limits of the runner": "libc.prlimit(1, 7, bytes(16), 0)",
    "priority of the runner": "libc.setpriority(0, 1, 19)",
    "priority of all of the user": "libc.setpriority(2, 0, 19)",
    "memfd": "libc.syscall(319, b'x', 0)",
    "shared memory": "libc.shmget(1, 4096, 0o1600)",
    "keyring": "libc.syscall(250, 0, -3, 0, 0, 0)",
    "bpf": "libc.syscall(321, 0, bytes(64), 64)",
    "io_uring": "libc.syscall(425, 1, bytes(120))",
    "userfaultfd": "libc.syscall(323, 0)",
    "personality": "libc.personality(0x40000)",
}


@cases("name", REFUSED)
def test_a_part_of_the_kernel_is_closed(name):
    code = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    assert run(f"{code}print({REFUSED[name]}, ctypes.get_errno())").stdout == b"-1 1\n"


def test_a_program_cannot_end_its_runner():
    code = """
import os
for kind in range(1, 65):
    try: os.kill(1, kind)
    except OSError: pass
print("tried")
"""

    async def scenario(backend):
        async with await backend.create() as sandbox:
            first = await sandbox.run_python(code)
            return first.stdout, (await sandbox.run_python("print(1)")).stdout

    assert play(scenario) == (b"tried\n", b"1\n")


def test_memory_of_all_processes_is_bounded_and_the_runner_survives():
    code = """
import os, time
for i in range(6):
    if not os.fork(): x = bytearray(60 << 20); time.sleep(9); os._exit(0)
x = bytearray(60 << 20)
while 1:
    try: print(os.waitstatus_to_exitcode(os.wait()[1]))
    except ChildProcessError: break
"""

    async def scenario(backend):
        async with await backend.create(limits=Limits(memory_mb=100, disk_mb=8)) as sandbox:
            bomb = await sandbox.run_python(code, limits=Limits(memory_mb=100, disk_mb=8))
            return bomb, (await sandbox.run_python("print(1)")).stdout

    bomb, after = play(scenario)
    assert bomb.status is Status.MEMORY_LIMIT or b"-9" in bomb.stdout
    assert after == b"1\n"


@pytest.mark.parametrize("how", ["kill", "remove_container"])
def test_a_container_that_dies_is_no_result(client, how):
    async def scenario(backend):
        async with await backend.create() as sandbox:
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(_error_of(sandbox.run_python("while 1: pass")))
                await asyncio.sleep(0.3)
                options = {"force": True} if how == "remove_container" else {}
                await asyncio.to_thread(getattr(client.api, how), client.only()["Id"], **options)
            with pytest.raises(SandboxLost):
                await sandbox.list_files()
        return running.result(), backend.stats().lost

    error, num_lost = play(scenario)
    assert isinstance(error, SandboxLost)
    assert num_lost == 1


def test_a_container_that_does_not_answer_is_lost(client):
    async def scenario(backend):
        async with await backend.create() as sandbox:
            await asyncio.to_thread(client.api.pause, client.only()["Id"])
            with pytest.raises(SandboxLost, match="did not answer 'list_files' within"):
                await sandbox.client.request("list_files", deadline_s=0.5)
            return await _error_of(sandbox.run_python("1"))

    assert isinstance(play(scenario), SandboxLost)
    assert client.mine() == []


async def _error_of(awaitable):
    try:
        return await awaitable
    except SandboxLost as error:
        return error
