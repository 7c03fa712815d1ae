"""What every sandbox backend with images promises of them."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agentgym_rl.core import ImageError, SandboxError
from agentgym_rl.gym import Image, ImageRecipe, Sandbox
from agentgym_rl.gym.sandbox_records import Status

from .sandboxes import LIMITS, SHOWN, SHOWN_AT, Opened

DOCKERFILE = """
FROM debian:12
ENV GREETING="hello there" \\
    PATH=/app/bin:$PATH
WORKDIR /app
COPY . .
COPY tool.sh bin/tool
"""
NEW = f"{DOCKERFILE}\nENV RUN_OF_TESTS={uuid.uuid4().hex}\n"
"""A file that no daemon has built for an earlier run of the tests."""
BUILT = f"{NEW}RUN echo built by $(id -u) > made.txt && mkdir -p /data && mv b.txt /data\n"
FILES = {"a.txt": b"A", "b.txt": b"B", "sub/c.txt": b"C", "tool.sh": b"#!/bin/sh\necho tool $1\n"}


def recipe(text: str = DOCKERFILE, **more: bytes) -> ImageRecipe:
    return ImageRecipe("task", {"Dockerfile": text.encode(), **FILES, **more})


@pytest.fixture(scope="module")
def images(world: Opened) -> Opened:
    world.needs("images")
    return world


@pytest.fixture(scope="module")
def image(images: Opened) -> Image:
    return images.run(images.backend.prepare(recipe()), timeout_s=240)


@pytest.fixture
def sandbox(images: Opened, image: Image):
    made = images.run(images.backend.create(image=image))
    yield made
    images.run(made.close())


def shell(images: Opened, sandbox: Sandbox, text: str) -> str:
    result = images.run(sandbox.exec(["bash", "-c", text]))
    assert result.status is Status.OK, (result.stdout_text, result.stderr_text)
    return result.stdout_text


def test_programs_start_in_the_work_dir_with_the_files_and_variables(images, image, sandbox):
    assert (image.work_dir, sandbox.image) == ("/app", image)
    assert image.env["GREETING"] == "hello there"
    said = shell(images, sandbox, 'pwd; cat a.txt sub/c.txt; echo; echo "$GREETING"; tool 7')
    assert said == "/app\nAC\nhello there\ntool 7\n"
    code = "import os; print(os.getcwd(), os.environ['GREETING'], open('a.txt').read())"
    assert images.run(sandbox.run_python(code)).stdout == b"/app hello there A\n"


def test_the_complete_file_system_can_be_written(images, sandbox):
    places = "/app /tests /logs/verifier /solution /home/x /root/y /opt/z /var/lib/q /tmp/t /etc/e"
    said = shell(
        images, sandbox, f"for d in {places}; do mkdir -p $d && echo $d > $d/f && cat $d/f; done"
    )
    assert said.split() == places.split()


def test_the_image_can_be_changed(images, sandbox):
    text = "echo x >> a.txt; rm sub/c.txt; rmdir sub; mv bin/tool t; cat a.txt; ./t 1; ls -A bin"
    assert shell(images, sandbox, text) == "Ax\ntool 1\n"
    assert images.run(sandbox.list_files()).keys() == {
        "Dockerfile", "a.txt", "b.txt", "tool.sh", "t",
    }  # fmt: skip


def test_two_sandboxes_of_an_image_share_nothing(images, image, sandbox):
    shell(images, sandbox, "echo changed > a.txt; touch new /root/new; rm b.txt")

    async def other() -> str:
        async with await images.backend.create(image=image) as second:
            said = await second.exec(
                ["bash", "-c", "cat a.txt b.txt; ls new /root/new 2>/dev/null"]
            )
            return said.stdout_text

    assert images.run(other()) == "AB"


def test_a_reset_gives_the_images_files_back(images, sandbox):
    shell(images, sandbox, "echo changed > a.txt; touch new /root/new; rm b.txt; sleep 60 & true")
    images.run(sandbox.reset())
    assert shell(images, sandbox, "cat a.txt b.txt; ls new /root/new 2>/dev/null || true") == "AB"


def test_files_anywhere_are_written_and_read(images, sandbox):
    files = {"x/y": b"1", "/logs/verifier/reward.txt": b"0.5", "/app/z": b"2", "bin/tool": b"#!x"}
    images.run(sandbox.write_files(files))
    for path, data in files.items():
        assert images.run(sandbox.read_file(path)) == data
    assert images.run(sandbox.read_file("z")) == b"2"
    result = images.run(
        sandbox.exec(["test", "-x", "bin/tool"], collect=["x", "/logs/verifier", "/app/z"])
    )
    assert result.ok
    assert result.files == {"x/y": b"1", "/logs/verifier/reward.txt": b"0.5", "z": b"2"}


@pytest.mark.parametrize(
    "path", ["/link", "/folder/x", "link", "/proc/1/environ", "/dev/zero", "/"]
)
def test_no_link_or_device_is_followed(images, sandbox, path):
    shell(images, sandbox, "ln -s /etc/passwd /link; ln -s /etc/passwd link; ln -s /app /folder")
    with pytest.raises(OSError):  # noqa: PT011 - each has its own number
        images.run(sandbox.read_file(path))
    result = images.run(sandbox.exec(["true"], collect=["/link", "/folder", "link"]))
    assert not result.files
    assert {each.path for each in result.skipped_files} == {"/link", "/folder", "link"}


@pytest.mark.parametrize("path", ["", "../x", "/a/../b", "a\0b"])
def test_paths_that_are_none(images, sandbox, path):
    with pytest.raises(ValueError, match="path"):
        images.run(sandbox.read_file(path))
    with pytest.raises(ValueError, match="path"):
        images.run(sandbox.write_files({path: b""}))


def test_a_missing_file(images, sandbox):
    with pytest.raises(FileNotFoundError):
        images.run(sandbox.read_file("/nowhere/x"))


def test_a_program_may_start_elsewhere(images, sandbox):
    result = images.run(sandbox.exec(["pwd"], cwd="/tmp", env={"A": "1"}))
    assert result.stdout == b"/tmp\n"
    assert images.run(sandbox.exec(["pwd"], cwd="sub")).stdout == b"/app/sub\n"


def test_sessions(images, sandbox):
    async def play() -> tuple[str, str]:
        shell = await sandbox.open_session("shell")
        await shell.run("cd /tmp; X=5; sleep 60 & echo $! > pid")
        kept = await shell.run('pwd; echo "$X $GREETING"; kill -0 $(cat pid) && echo lives; tool 2')
        await shell.close()
        python = await sandbox.open_session("python")
        await python.run("import os; x = 1")
        said = await python.run("os.getcwd(), x, os.environ['GREETING']")
        return kept.stdout_text, said.stdout_text

    kept, said = images.run(play())
    assert kept == "/tmp\n5 hello there\nlives\ntool 2\n"
    assert said == "('/app', 1, 'hello there')\n"


def test_limits_hold(images, image):
    limits = dataclasses.replace(LIMITS, disk_mb=8, wall_s=10)

    async def play() -> str:
        async with await images.backend.create(image=image, limits=limits) as sandbox:
            if not sandbox.capabilities.disk:
                return "0"
            fill = "head -c 100000000 /dev/zero > /root/big; stat -c %s /root/big"
            return (await sandbox.exec(["bash", "-c", fill])).stdout_text

    assert int(images.run(play())) < 20 << 20


# ---------------------------------------------------------------------- folders of this machine
@pytest.fixture
def shown(images):
    """A folder that every sandbox shows, with a program in it."""
    if images.backend.name == "e2b":
        pytest.skip("its machines are elsewhere, so it refuses the option `mounts`")
    (SHOWN / "bin").mkdir(exist_ok=True)
    (SHOWN / "bin" / "agent").write_text("#!/bin/sh\necho agent in $(pwd)\n")
    (SHOWN / "bin" / "agent").chmod(0o755)
    return SHOWN


def test_a_folder_of_this_machine_is_shown_and_its_programs_run(images, sandbox, shown):
    assert shell(images, sandbox, f"{SHOWN_AT}/bin/agent") == "agent in /app\n"
    images.run(sandbox.reset())
    (shown / "later").write_text("new")
    assert shell(images, sandbox, f"cat {SHOWN_AT}/later; ls {SHOWN_AT}") == "newbin\nlater\n"
    assert not any("agent" in path for path in images.run(sandbox.list_files()))


def test_a_sandbox_without_an_image_shows_it_too(images, shown):
    argv = [f"{SHOWN_AT}/bin/agent"]
    assert images.use(lambda made: made.exec(argv)).stdout == b"agent in /box\n"


@pytest.mark.parametrize(
    "text",
    [
        "echo x > bin/agent",
        "echo x > new",
        "rm bin/agent",
        "mv bin other",
        "mkdir folder",
        "chmod 777 bin/agent",
        "ln -s /etc link",
        "cd / && rmdir opt/shown",
        "cd / && mv opt/shown opt/other",
        "mount -o remount,rw .",
        "umount .",
    ],
)
def test_no_program_changes_it(images, sandbox, shown, text):
    result = images.run(sandbox.exec(["bash", "-c", f"cd {SHOWN_AT} && {text}"]))
    assert result.status is Status.ERROR
    with pytest.raises((OSError, SandboxError)):
        images.run(sandbox.write_files({f"{SHOWN_AT}/bin/agent": b"x"}))
    assert sorted(path.name for path in shown.iterdir()) in (["bin"], ["bin", "later"])
    assert (shown / "bin" / "agent").read_text().endswith("$(pwd)\n")
    assert (shown / "bin" / "agent").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("folder", [SHOWN_AT, f"{SHOWN_AT}/sub", "/opt"])
def test_no_task_works_in_it(images, shown, folder):
    text = f"FROM debian:12\nWORKDIR {folder}\n"
    with pytest.raises(ImageError, match=f"{folder}.*{SHOWN_AT}"):
        images.run(images.backend.prepare(recipe(text)), timeout_s=240)


def test_no_image_has_files_in_it(images, shown):
    text = f"{DOCKERFILE}COPY a.txt {SHOWN_AT}/a.txt\n"
    with pytest.raises(ImageError):
        images.run(images.backend.prepare(recipe(text)), timeout_s=240)


# ---------------------------------------------------------------------- memory
RESERVE = "import mmap; m = mmap.mmap(-1, 8 << 30, flags=0x4022, prot=1); print(len(m))"


def test_programs_may_reserve_memory_that_they_do_not_use(images, image, sandbox):
    if not sandbox.capabilities.total_memory:
        pytest.skip("memory is bounded by the address space of each process alone")
    assert images.run(sandbox.run_python(RESERVE)).stdout == b"8589934592\n"
    tighter = dataclasses.replace(LIMITS, memory_mb=256)
    assert images.run(sandbox.run_python(RESERVE, limits=tighter)).status is not Status.OK


def test_memory_in_use_is_bounded(images, sandbox):
    result = images.run(sandbox.run_python("x = bytearray(3 << 30)"))
    assert result.status is Status.MEMORY_LIMIT
    images.run(sandbox.reset())
    assert images.run(sandbox.run_python("print(1)")).stdout == b"1\n"


# ---------------------------------------------------------------------- one address of the host
ASK = """
import concurrent.futures, socket, sys, urllib.request
def ask(n): return urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/{n}", timeout=30).read()
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(*(text.decode() for text in pool.map(ask, range(40))))
"""
REFUSED = """
import socket, sys
for host, port in (("127.0.0.1", PORT), ("127.0.0.1", 9), ("10.0.0.1", 80), ("1.1.1.1", 53)):
    try: socket.create_connection((host, port), 3); print(host, port, "answers")
    except OSError as error: pass
"""
STREAM = """
import socket
conn = socket.create_connection(("127.0.0.1", 8123), 30)
conn.sendall(b"GET /stream HTTP/1.0\\r\\n\\r\\n")
reader = conn.makefile("rb")
while reader.readline().strip(): pass
print(reader.readline().decode(), end="", flush=True)
conn.sendall(b"go on\\n")
print(reader.read().decode(), end="")
"""


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    """A server on this host; its /stream says more only once the first piece has arrived."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readline()).split()[1].decode()
        while (await reader.readline()).strip():
            pass
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
        if path == "/stream":
            writer.write(b"one\n")
            await writer.drain()
            assert await reader.readline() == b"go on\n"
        writer.write(path.encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"


def test_one_address_is_forwarded_and_nothing_else(images, sandbox):
    async def play() -> tuple[str, ...]:
        async with served() as address:
            refused = REFUSED.replace("PORT", address.rpartition(":")[2])
            async with sandbox.forward(8123, address):
                many = await sandbox.exec(["python3", "-c", ASK, "8123"])
                stream = await sandbox.run_python(STREAM)
                others = await sandbox.run_python(refused)
            after = await sandbox.run_python(refused.replace("9)", "8123)"))
        return many.stdout_text, stream.stdout_text, others.stdout_text, after.stdout_text

    many, stream, others, after = images.run(play())
    assert many.split() == [f"/{number}" for number in range(40)]
    assert stream == "one\n/stream"
    assert (others, after) == ("", "")


def test_what_is_no_address_of_the_host(images, sandbox):
    async def play(port: int, to: str) -> None:
        async with sandbox.forward(port, to):
            pass

    for port, to in ((0, "a:1"), (1, "a"), (1, "a:b"), (1, ":1"), (1 << 16, "a:1")):
        with pytest.raises(ValueError, match="expected"):
            images.run(play(port, to))


def test_a_port_that_a_program_uses_cannot_be_forwarded(images, sandbox):
    code = "import socket; s = socket.create_server(('127.0.0.1', 8124))"

    async def play() -> None:
        session = await sandbox.open_session("python")
        assert (await session.run(code)).ok
        async with sandbox.forward(8124, "127.0.0.1:9"):
            pass

    with pytest.raises(SandboxError, match="8124"):
        images.run(play())


# ---------------------------------------------------------------------- builds
def test_steps_run(images):
    said: list[str] = []
    prepared = images.backend.prepare(recipe(BUILT), report=said.append)
    image = images.run(prepared, timeout_s=240)

    async def play() -> str:
        async with await images.backend.create(image=image) as sandbox:
            return (
                await sandbox.exec(["bash", "-c", "cat made.txt /data/b.txt; ls b.txt"])
            ).stdout_text

    assert images.run(play()).startswith("built by 0\nB")
    assert any("RUN echo built" in line for line in said)


def test_one_build_serves_all(images):
    said: list[str] = []
    text = f"{NEW}RUN sleep 0.2; date +%N > stamp\n"

    async def play() -> list[Image]:
        async with asyncio.TaskGroup() as tasks:
            made = [
                tasks.create_task(images.backend.prepare(recipe(text), report=said.append))
                for _ in range(3)
            ]
        return [each.result() for each in made]

    found = images.run(play(), timeout_s=240)
    assert found[0] == found[1] == found[2]
    assert len([line for line in said if "RUN sleep" in line]) == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{DOCKERFILE}\nRUN echo oh no; exit 3\n", "oh no"),
        ("FROM no-such/base:1\n", "no-such/base"),
        ("FROM debian:12\nFETCH x\n", "line 2"),
        ("FROM debian:12\nCOPY nothing /\n", "nothing"),
    ],
)
def test_what_cannot_be_built_names_the_task(images, text, why):
    with pytest.raises(ImageError) as caught:
        images.run(images.backend.prepare(recipe(text)), timeout_s=240)
    assert why in str(caught.value)
    assert "task" in str(caught.value)


def test_an_image_of_another_backend_is_refused(images):
    with pytest.raises(SandboxError, match="not prepared"):
        images.run(images.backend.create(image=Image("0" * 64, "/app", place="nowhere")))


def test_a_backend_without_images_says_so(world: Opened):
    if world.backend_capabilities.images:
        pytest.skip("this backend has images")
    with pytest.raises(SandboxError, match="images"):
        world.run(world.backend.prepare(recipe()))
    with pytest.raises(SandboxError, match="images"):
        world.run(world.backend.create(image=Image("0" * 64, "/app")))
