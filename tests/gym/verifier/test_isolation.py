"""What workers are held back from: hostile code is run in them, as it would be by a scorer."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from arl_verifier.pool import ProcessPool

from agentgym_rl.core import ConfigError

EVERYTHING = {"network", "writes", "exec", "signals", "reads"}


def attack(name: str, *args, **options):
    async def main():
        async with ProcessPool(1, timeout_s=20, **options) as pool:
            if missing := EVERYTHING - pool.isolation:
                pytest.skip(f"this machine cannot hold back {missing}")
            return await pool.call(f"hostile:{name}", *args)

    called = asyncio.run(main())
    assert called.status == "done", called
    return called.value


def succeeded(found: dict[str, str]) -> list[str]:
    return [name for name, outcome in found.items() if outcome == "done"]


def test_files_are_not_touched(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("x")
    places = [str(mine), "/tmp/arl-verifier-attack", "/dev/shm/arl-verifier-attack"]
    assert succeeded(attack("touch", *places)) == []
    assert (mine.read_text(), os.listdir(tmp_path)) == ("x", ["mine"])
    assert not any(Path(place).exists() for place in places[1:])


def test_nothing_is_dialled(tmp_path):
    path = str(tmp_path / "service")
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(path)
        unix.listen()
        assert succeeded(attack("dial", tcp.getsockname()[1], path)) == []


def test_without_locks_the_attacks_get_through(tmp_path):
    (tmp_path / "mine").write_text("x")
    path = str(tmp_path / "service")

    async def main(pool, port):
        paths = ["/etc/passwd", f"/proc/{os.getpid()}/environ"]
        async with pool:
            called = [
                await pool.call("hostile:touch", str(tmp_path / "mine")),
                await pool.call("hostile:dial", port, path),
                await pool.call("hostile:reads", *paths),
            ]
            return [set(succeeded(each.value)) for each in called], paths

    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(path)
        unix.listen()
        port = tcp.getsockname()[1]
        (touched, dialled, read), paths = asyncio.run(main(ProcessPool(1, isolated=False), port))
    assert len(touched) >= 6
    assert {"tcp", "udp", "unix", "pair", "bind"} <= dialled
    assert set(paths) <= read


def test_nothing_is_started():
    assert succeeded(attack("execute")) == []


def test_a_fork_bomb_is_one_process():
    assert attack("bomb") == 0


def test_nobody_is_killed():
    with subprocess.Popen(["sleep", "60"]) as bystander:
        try:
            assert succeeded(attack("signals", bystander.pid, os.getpid(), os.getppid(), 1)) == []
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_others_are_not_read(tmp_path):
    (tmp_path / "secret").write_text("x")
    mine = [f"/proc/{os.getpid()}/{name}" for name in ("environ", "mem", "maps", "cmdline")]
    paths = [*mine, "/proc/self/environ", "/etc/passwd", str(tmp_path / "secret")]
    assert succeeded(attack("reads", *paths)) == []


def test_modules_can_still_be_read():
    assert succeeded(attack("reads", os.__file__, __file__)) == [
        os.__file__,
        __file__,
        f"list {os.__file__}",
        f"list {__file__}",
    ]


def test_the_locks_hold():
    assert succeeded(attack("escapes")) == []


def test_a_worker_has_nothing_of_its_parent_s(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")

    async def main():
        async with ProcessPool(1) as pool:
            found = [await pool.call(f"judges:{name}") for name in ("environment", "handles")]
            return [called.value for called in found]

    with open(__file__):  # one more that must not be inherited
        environment, handles = asyncio.run(main())
    assert environment == {}
    assert len(handles) == 4  # standard ones, and the stream


@pytest.mark.parametrize(("fresh", "then"), [(False, "poisoned"), (True, "well")])
def test_what_one_call_plants_a_fresh_one_does_not_meet(fresh, then):
    async def main():
        async with ProcessPool(1) as pool:
            await pool.call("hostile:poison")
            return (await pool.call("hostile:innocent", fresh=fresh)).value

    assert asyncio.run(main()) == then


def test_isolation_says_what_holds():
    async def main(isolated):
        async with ProcessPool(1, isolated=isolated) as pool:
            return pool.isolation

    assert asyncio.run(main(False)) == frozenset()
    assert asyncio.run(main(True)) <= EVERYTHING


def test_what_is_required_and_not_there_is_refused():
    async def main():
        async with ProcessPool(isolated=False, required=("network", "exec")):
            pass

    with pytest.raises(ConfigError, match="cannot hold back network, exec here") as caught:
        asyncio.run(main())
    assert "isolated=False" in str(caught.value)


NOBODY = """
import asyncio, json, os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
from arl_verifier.pool import ProcessPool
async def main():
    async with ProcessPool(1, timeout_s=20) as pool:
        host = os.getpid()
        found = {}
        for name, *args in (
            ("touch", "/tmp/arl-verifier-nobody"), ("execute",), ("signals", host, os.getppid()),
            ("reads", f"/proc/{host}/environ", "/etc/passwd"), ("escapes",), ("dial", 1, "/x"),
        ):
            called = await pool.call(f"hostile:{name}", *args)
            assert called.status == "done", called
            found |= called.value
        hung = await pool.call("judges:hang", timeout_s=0.3)
        print(json.dumps([sorted(pool.isolation), found, hung.status]))
asyncio.run(main())
"""


def _as_nobody() -> subprocess.CompletedProcess[str]:
    """With this interpreter; or the machine's own, where this one is root's alone."""
    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    path = os.pathsep.join(entry for entry in sys.path if not entry.startswith(sys.base_prefix))
    for python in filter(os.path.exists, (sys.executable, system)):
        run = subprocess.run(
            [python, "-c", NOBODY],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": path},
            timeout=60,
        )
        if run.returncode == 0:
            return run
    if "PermissionError" in run.stderr or "ModuleNotFoundError" in run.stderr:
        pytest.skip("that user cannot read an interpreter and this checkout")
    pytest.fail(run.stderr)


def test_another_user_s_workers_are_held_back_too():
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    isolation, found, hung = json.loads(_as_nobody().stdout)
    assert set(isolation) == EVERYTHING
    assert (succeeded(found), hung) == ([], "timeout")
