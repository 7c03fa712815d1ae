"""Children on the nodes of a Ray cluster: placed, watched, started again elsewhere, ended."""

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from functools import partial

import pytest

from agentgym_rl.cluster import Demand, ProcessSpec
from agentgym_rl.core import ConfigError, ProcessDied

ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
pytestmark = pytest.mark.slow

LIMITS = {"start_timeout_s": 240, "stop_timeout_s": 2}
SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def run(ray_cluster, tmp_path):
    from arl_scale.ray_processes import RayProcesses

    def run(use, *demands, shared=()):
        async def main():
            async with asyncio.timeout(300), RayProcesses(tmp_path, **LIMITS) as processes:
                await processes.reserve(demands, shared=shared)
                return await use(processes)

        return asyncio.run(main())

    return run


def spec(name, code, *, finite=False):
    return ProcessSpec(name=name, argv=[sys.executable, "-S", "-c", code], finite=finite)


def parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def gone(pid, seconds=5.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.02)
                continue
        return True
    return False


def test_children_run_where_there_is_room_and_end_together(run):
    async def use(processes):
        for index in range(3):
            await processes.start(spec(f"engine-{index}", f"print('here', flush=True); {SLEEP}"))
        logs = [processes.log_path(f"engine-{i}") for i in range(3)]
        while not all(log.read_text() == "here\n" for log in logs):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return [processes.pid(f"engine-{index}") for index in range(3)]

    pids = run(use, Demand("engine", 3, cpus=1))
    assert all(gone(pid) for pid in pids)


def test_a_child_more_than_was_asked_for_gets_room_and_gives_it_back(run):
    from ray.util import placement_group_table

    def alive():
        return sum(group["state"] == "CREATED" for group in placement_group_table().values())

    async def use(processes):
        before = alive()
        await processes.start(spec("engine-1", SLEEP))
        pid = processes.pid("engine-1")
        assert alive() == before + 1
        await processes.forget("engine-1")
        assert gone(pid)
        assert alive() == before
        await processes.forget("engine-1")  # there is none any more
        await processes.start(spec("engine-0", SLEEP))
        await processes.forget("engine-0")
        assert alive() == before, "room of the beginning stays"
        await processes.start(spec("engine-0", SLEEP))

    run(use, Demand("engine", 1, cpus=1))


def test_a_killed_child_is_noticed_and_started_again(run):
    async def use(processes):
        await processes.start(spec("engine-0", SLEEP))
        first = processes.pid("engine-0")
        os.kill(first, signal.SIGKILL)
        died = await processes.ended("engine-0")
        await processes.end("engine-0")
        await processes.start(spec("engine-0", SLEEP))
        return first, died, processes.pid("engine-0")

    first, died, second = run(use, Demand("engine", 1, cpus=1))
    assert "SIGKILL" in str(died)
    assert first != second


def test_a_frozen_child_is_noticed(run):
    async def use(processes):
        await processes.start(spec("engine-0", SLEEP))
        os.kill(processes.pid("engine-0"), signal.SIGSTOP)
        return await processes.ended("engine-0")

    assert "is frozen" in str(run(use, Demand("engine", 1, cpus=1)))


def test_a_frozen_host_is_noticed(run):
    async def use(processes):
        await processes.start(spec("engine-0", SLEEP))
        host = parent(processes.pid("engine-0"))
        os.kill(host, signal.SIGSTOP)
        died = await processes.ended("engine-0")
        os.kill(host, signal.SIGKILL)
        return died

    assert "silent for 4.5 s" in str(run(use, Demand("engine", 1, cpus=1)))


def test_what_ran_on_a_dead_node_gets_another(run, ray_cluster):
    """Only nodes that the test adds have three CPUs."""
    add = partial(ray_cluster.add_node, num_cpus=3, object_store_memory=80 * 1024 * 1024)
    node = add()

    async def use(processes):
        nonlocal node
        await processes.start(spec("engine-0", SLEEP))
        first = processes.pid("engine-0")
        ray_cluster.remove_node(node, allow_graceful=False)
        died = await processes.ended("engine-0")
        node = add()
        await processes.end("engine-0")
        await processes.start(spec("engine-0", SLEEP))
        return first, died, processes.pid("engine-0")

    try:
        first, died, second = run(use, Demand("engine", 1, cpus=3))
    finally:
        ray_cluster.remove_node(node)
    assert isinstance(died, ProcessDied)
    assert gone(first, seconds=60)
    assert second != first


def test_a_dead_host_takes_its_child_along_and_is_replaced(run):
    async def use(processes):
        await processes.start(spec("engine-0", SLEEP))
        child = processes.pid("engine-0")
        host = parent(child)
        os.kill(host, signal.SIGKILL)
        died = await processes.ended("engine-0")
        await processes.end("engine-0")
        await processes.start(spec("engine-0", SLEEP))
        return child, died, processes.pid("engine-0")

    child, died, second = run(use, Demand("engine", 1, cpus=1))
    assert isinstance(died, ProcessDied)
    assert gone(child)
    assert second != child


def test_ends_of_finite_children(run):
    async def use(processes):
        await processes.start(spec("trainer-0", "pass", finite=True))
        await processes.start(spec("trainer-1", "raise SystemExit('my last words')", finite=True))
        return [await processes.ended(f"trainer-{rank}") for rank in range(2)]

    well, badly = run(use, Demand("trainer", 2, cpus=1))
    assert well is None
    assert re.search(r"(?s)exited with 1.*my last words", str(badly))


def test_a_folder_that_a_node_does_not_see_is_named(run, tmp_path, monkeypatch):
    from arl_scale.ray_processes import RayProcesses

    (tmp_path / "mine").mkdir()

    def forgetful(self, folders):
        self._tokens[str(tmp_path / "mine" / ".seen-0")] = "another machine's file"

    monkeypatch.setattr(RayProcesses, "_mark", forgetful)

    async def use(processes):
        raise AssertionError("never")

    with pytest.raises(ConfigError, match=r"does not see .*mine of this machine"):
        run(use, Demand("engine", 1, cpus=1), shared=[tmp_path / "mine"])
