"""The layers of the local backend's images: their cache, their builds, and what links cannot do."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from arl_sandboxes.local import LocalBackend

from agentgym_rl.core import ConfigError, ImageError, SandboxError
from agentgym_rl.gym import ImageRecipe
from tests.kit.cases import cases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

T = TypeVar("T")
BLOCK = bytes(600 << 10)


def recipe(text: str, **files: bytes) -> ImageRecipe:
    return ImageRecipe("task", {"Dockerfile": text.encode(), "a.txt": b"A", **files})


def use(cache: Path, scenario: Callable[[LocalBackend], Awaitable[T]], **options) -> T:
    async def play() -> T:
        backend = LocalBackend(slots=1, image_cache=str(cache), **options)
        if not (await backend.probe()).capabilities.images:
            pytest.skip("the local sandbox has no images on this machine")
        async with backend:
            return await scenario(backend)

    return asyncio.run(asyncio.wait_for(play(), 240))


def built(cache: Path, text: str, program: str = "true", **files: bytes) -> str:
    """What a program prints in a sandbox of the image."""

    async def scenario(backend: LocalBackend) -> str:
        image = await backend.prepare(recipe(text, **files), timeout_s=120)
        async with await backend.create(image=image) as sandbox:
            result = await sandbox.exec(["bash", "-c", program])
            assert result.ok, (result.stdout_text, result.stderr_text)
            return result.stdout_text

    return use(cache, scenario)


def layers(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.is_dir())


def test_a_layer_serves_later_processes(tmp_path):
    said: list[str] = []

    async def scenario(backend: LocalBackend) -> str:
        image = await backend.prepare(recipe("FROM debian\nRUN date +%N > x"), report=said.append)
        async with await backend.create(image=image) as sandbox:
            return (await sandbox.read_file("/x")).decode()

    assert use(tmp_path, scenario) == use(tmp_path, scenario)
    assert len(said) == 1


def test_two_backends_build_a_layer_once(tmp_path):
    said: list[str] = []

    async def scenario(one: LocalBackend) -> None:
        text = "FROM debian\nRUN sleep 0.3"
        two = LocalBackend(slots=1, image_cache=str(tmp_path))
        async with two, asyncio.TaskGroup() as tasks:
            for backend in (one, two):
                tasks.create_task(backend.prepare(recipe(text), report=said.append))

    use(tmp_path, scenario)
    assert len(said) == 1


def test_what_a_killed_build_left_is_no_layer(tmp_path):
    text = "FROM debian\nWORKDIR /app\nCOPY a.txt ."
    assert built(tmp_path, text, "cat a.txt") == "A"
    (name,) = layers(tmp_path)
    (tmp_path / name).rename(tmp_path / f"{name}.new")
    (tmp_path / f"{name}.new" / "litter").write_text("x")
    assert built(tmp_path, text, "ls / | grep litter || cat a.txt") == "A"
    assert layers(tmp_path) == [name]


@pytest.mark.parametrize("ending", ["new", "new.run"])
def test_a_start_removes_what_a_killed_build_left(tmp_path, ending):
    assert built(tmp_path, "FROM debian\nWORKDIR /app\nCOPY a.txt .", "cat a.txt") == "A"
    (name,) = layers(tmp_path)
    (tmp_path / "killed.lock").touch()
    (tmp_path / f"killed.{ending}" / "app").mkdir(parents=True)
    with open(tmp_path / "living.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as the one who builds it
        (tmp_path / f"living.{ending}").mkdir()
        use(tmp_path, lambda backend: backend.probe())
        left = {path.name for path in tmp_path.iterdir()}
    assert left == {name, f"{name}.lock", "living.lock", f"living.{ending}"}


def test_a_failed_build_leaves_nothing(tmp_path):
    with pytest.raises(ImageError, match="line 2"):
        use(tmp_path, lambda backend: backend.prepare(recipe("FROM debian\nRUN exit 3")))
    assert not list(tmp_path.iterdir())


def test_the_cache_is_bounded_but_for_what_is_in_use(tmp_path):
    async def scenario(backend: LocalBackend) -> int:
        for number in range(3):
            files = {"block": BLOCK, "number": str(number).encode()}
            await backend.prepare(recipe("FROM debian\nCOPY . /x/", **files))
        return len(layers(tmp_path))

    assert use(tmp_path, scenario, image_cache_mb=1) == 3
    files = {"block": BLOCK, "number": b"3"}
    use(
        tmp_path,
        lambda backend: backend.prepare(recipe("FROM debian\nCOPY . /x/", **files)),
        image_cache_mb=1,
    )
    assert len(layers(tmp_path)) == 1


def open_layers(cache: Path) -> set[str]:
    """The layers whose lock this process has open."""
    paths = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return {Path(path).stem for path in paths if path.startswith(str(cache))}


def test_many_images_take_few_open_files(tmp_path, monkeypatch):
    monkeypatch.setattr("arl_sandboxes.local.layers.MAX_UNUSED", 2)

    async def scenario(backend: LocalBackend) -> None:
        texts = [f"FROM python:3\nWORKDIR /app{number}\n" for number in range(6)]
        first = await backend.prepare(recipe(texts[0]), timeout_s=120)
        async with await backend.create(image=first) as sandbox:
            images = [await backend.prepare(recipe(text), timeout_s=120) for text in texts[1:]]
            kept = {Path(image.place).name for image in (first, *images[-2:])}
            assert open_layers(tmp_path) == kept, "one is in use, two were used last"
            assert (await sandbox.exec(["pwd"])).stdout == b"/app0\n"
        with pytest.raises(SandboxError, match="prepare it again"):
            await backend.create(image=images[0])
        again = await backend.prepare(recipe(texts[1]), timeout_s=120)
        assert again == images[0]
        async with await backend.create(image=again) as sandbox:
            assert (await sandbox.exec(["pwd"])).stdout == b"/app1\n"

    use(tmp_path, scenario)
    assert open_layers(tmp_path) == set()


def test_a_step_leaves_what_it_changed(tmp_path):
    text = """
FROM debian
WORKDIR /usr/src/app
COPY . .
RUN chmod 700 a.txt; ln -s a.txt link; mkdir -m 711 d; echo x > d/f; mkfifo pipe; rm b.txt
RUN echo y >> d/f; mkdir -p /opt/new
"""
    program = "stat -c '%a %F' a.txt link d; cat d/f; ls; ls -d /opt/new; readlink link"
    said = built(tmp_path, text, program, **{"b.txt": b"B"})
    assert said.splitlines() == [
        "700 regular file", "777 symbolic link", "711 directory", "x", "y",
        "Dockerfile", "a.txt", "d", "link", "/opt/new", "a.txt",
    ]  # fmt: skip


def test_a_step_cannot_send_the_host_astray(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    cache = tmp_path / "cache"
    for link in (f"ln -s {outside} /out", "ln -s / /out"):
        with pytest.raises(ImageError, match="line 3"):
            built(cache, f"FROM debian\nRUN {link}\nCOPY a.txt /out/x/")
    assert os.listdir(outside) == []
    assert built(cache, f"FROM debian\nRUN ln -s {outside}/a /x\nCOPY a.txt /x", "cat /x") == "A"
    assert os.listdir(outside) == []


@cases("base", ["debian", "python:3.11-slim", "docker.io/library/ubuntu:24.04"])
def test_this_machine_stands_for_some_bases(tmp_path, base):
    program = "cat /a.txt; python3 -c 'print(1)'"
    assert built(tmp_path, f"FROM {base}\nCOPY a.txt /", program) == "A1\n"


def test_this_machine_stands_for_the_bases_of_an_option(tmp_path):
    async def scenario(backend: LocalBackend) -> None:
        await backend.prepare(recipe("FROM node:22\nRUN echo 1 > x"))
        with pytest.raises(ImageError, match=r"can stand for this one, too: .*\"node:23\" = "):
            await backend.prepare(recipe("FROM node:23"))

    use(tmp_path, scenario, bases={"node:22": "debian"})


@cases("bases", [{"node:22": "node"}, {"node:22": None}, ["node:22"], {"a": "example.com/debian"}])
def test_bases_that_are_none(bases):
    with pytest.raises(ConfigError, match="bases: "):
        LocalBackend(bases=bases)


@cases(
    "text, why",
    [
        ("FROM node:20", "no image 'node:20'"),
        ("FROM example.com/debian:12", "no image"),
        ("FROM debian\nUSER agent", "USER agent"),
        ("FROM debian\nCOPY a.txt /bin/x", "machine's own"),
        ("FROM debian\nWORKDIR /proc/x", "machine's own"),
        ("FROM debian\nRUN curl http://1.1.1.1/ || python3 -c 'import no_such_module'", "no_such"),
    ],
)
def test_what_this_machine_cannot_stand_for(tmp_path, text, why):
    with pytest.raises(ImageError) as caught:
        built(tmp_path, text)
    assert why in str(caught.value)
    assert layers(tmp_path) == []


def test_no_copy_to_the_root_covers_the_machines_folders(tmp_path):
    with pytest.raises(ImageError, match="/bin is this machine's own"):
        built(tmp_path, "FROM debian\nCOPY . /", "true", **{"bin/x": b""})
    assert layers(tmp_path) == []


KILLED = """
import asyncio, sys
from arl_sandboxes.local import LocalBackend
from agentgym_rl.gym.sandbox import ImageRecipe
async def main():
    async with LocalBackend(slots=1, image_cache=sys.argv[1]) as backend:
        image = await backend.prepare(ImageRecipe("t", {"Dockerfile": b"FROM debian"}))
        async with await backend.create(image=image) as sandbox:
            session = await sandbox.open_session("shell")
            await session.run("setsid sleep 1000 & setsid sleep 1000 &")
            print("ready", flush=True)
            await asyncio.sleep(1000)
asyncio.run(main())
"""


def test_nothing_outlives_a_killed_host(tmp_path):
    host = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    with host:
        ready = host.stdout.readline()
        if not ready:
            pytest.skip("the local sandbox does not work here")
        below = descendants(host.pid)
        assert len(below) >= 6
        host.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60
    while left := [pid for pid, started in below.items() if birth(pid) == started]:
        assert time.monotonic() < until, f"left over: {left}"
        time.sleep(0.05)


def descendants(top: int) -> dict[int, str]:
    """The processes below one, with the times of their start."""
    found: dict[int, str] = {}
    todo = [top]
    while todo:
        pid = todo.pop()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        todo += map(int, children)
        found |= {int(child): birth(int(child)) for child in children}
    return found


def birth(pid: int) -> str:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[19] if fields[0] not in "ZX" else ""


# A program that is prepared in that moment makes a folder that is not there: hence `until`.
# A program that is prepared in that moment makes a folder that is not there: hence `until`.
PLACES = {
    "gone": ("rm -rf /app", "/app\n"),
    "gone with what is above": ("rm -rf /srv", "/app\n"),
    "a new one": ("mv /app /old; mkdir /app", "/app\n"),
    "a file": ("until [ -f /app ]; do rm -rf /app; echo x > /app; done", "/\n"),
    "a pipe": ("until [ -p /app ]; do rm -rf /app; mkfifo /app; done", "/\n"),
    "linked to itself": ("until [ -L /app ]; do rm -rf /app; ln -s app /app; done", "/\n"),
    "closed": ("chmod 000 /app", "/\n"),
}


@pytest.mark.parametrize("kind", PLACES)
def test_programs_begin_whatever_took_the_place_of_the_work_folder(tmp_path, kind):
    command, begins = PLACES[kind]
    base = "/srv/app" if "above" in kind else "/app"

    async def scenario(backend: LocalBackend) -> None:
        image = await backend.prepare(recipe(f"FROM debian\nWORKDIR {base}\nCOPY a.txt ."))
        async with await backend.create(image=image) as sandbox:
            session = await sandbox.open_session("shell")
            await session.run(f"cd /; {command}")
            await session.close()
            for _ in range(2):  # the first program was forked before that
                result = await sandbox.exec(["pwd"])
                assert result.stdout_text in (begins, base + "\n"), result
            there = await sandbox.list_files()
            if begins == "/app\n":
                assert there == {}
                await sandbox.write_files({"b.txt": b"B"})
                assert await sandbox.list_files() == {"b.txt": 1}
                assert await sandbox.read_file(f"{base}/b.txt") == b"B"
            elif kind != "closed":
                with pytest.raises(SandboxError, match="work folder"):
                    await sandbox.write_files({"b.txt": b"B"})

    use(tmp_path, scenario)


def test_a_new_work_folder_is_the_one_that_is_read(tmp_path):
    async def scenario(backend: LocalBackend) -> None:
        image = await backend.prepare(recipe("FROM debian\nWORKDIR /app\nCOPY a.txt ."))
        async with await backend.create(image=image) as sandbox:
            moved = "cd /; mv /app /old; mkdir /app; echo new > /app/n"
            result = await sandbox.exec(["sh", "-c", moved], collect=["."])
            assert dict(result.files) == {"n": b"new\n"}
            assert await sandbox.read_file("n") == b"new\n"

    use(tmp_path, scenario)


@pytest.mark.parametrize("last", ["touch /app", "ln -s /real /app"])
def test_an_image_whose_work_folder_is_none_is_refused(tmp_path, last):
    text = f"FROM debian\nWORKDIR /app\nRUN cd /; rmdir /app; mkdir /real; {last}"
    with pytest.raises(ImageError, match="its work folder /app is a file or a link"):
        use(tmp_path, lambda backend: backend.prepare(recipe(text)))
