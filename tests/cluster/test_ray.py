"""Children on the nodes of a Ray cluster: placed, watched, started again elsewhere, ended."""

import asyncio
import contextlib
import os
import signal
import sys
import time

import pytest

from agentgym_rl.cluster.demand import Demand
from agentgym_rl.errors import ConfigError, ProcessDied
from agentgym_rl.process import ProcessSpec

ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
pytestmark = pytest.mark.slow

SLEEP = "import time; time.sleep(600)"
_STORE = 80 * 1024 * 1024


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "include_dashboard": False, "object_store_memory": _STORE},
    )
    cluster.add_node(num_cpus=2, object_store_memory=_STORE)
    ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def run(cluster, tmp_path):
    from agentgym_rl.cluster.ray import RayProcesses

    def run(use, *demands):
        async def main():
            async with asyncio.timeout(90), RayProcesses(tmp_path, stop_timeout_s=2) as processes:
                await processes.reserve(demands, timeout_s=20)
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


def test_a_killed_child_is_noticed_and_started_again(run):
    async def use(processes):
        await processes.start(spec("engine-0", SLEEP))
        first = processes.pid("engine-0")
        os.kill(first, signal.SIGKILL)
        began = time.monotonic()
        died = await processes.ended("engine-0")
        assert time.monotonic() - began < 5
        await processes.restart("engine-0")
        return first, died, processes.pid("engine-0")

    first, died, second = run(use, Demand("engine", 1, cpus=1))
    assert "SIGKILL" in str(died)
    assert first != second


def test_a_frozen_host_is_noticed(run):
    async def use(processes):
        await processes.start(spec("engine-0", SLEEP))
        host = parent(processes.pid("engine-0"))
        os.kill(host, signal.SIGSTOP)
        began = time.monotonic()
        died = await processes.ended("engine-0")
        took = time.monotonic() - began
        os.kill(host, signal.SIGKILL)
        return died, took

    died, took = run(use, Demand("engine", 1, cpus=1))
    assert "did not answer" in str(died)
    assert took < 6


def test_a_dead_host_takes_its_child_along_and_is_replaced(run):
    async def use(processes):
        await processes.start(spec("engine-0", SLEEP))
        child = processes.pid("engine-0")
        host = parent(child)
        os.kill(host, signal.SIGKILL)
        died = await processes.ended("engine-0")
        await processes.restart("engine-0")
        return child, died, processes.pid("engine-0")

    child, died, second = run(use, Demand("engine", 1, cpus=1))
    assert isinstance(died, ProcessDied)
    assert gone(child)
    assert second != child


def test_finite_children_that_end_well(run):
    async def use(processes):
        for rank in range(2):
            await processes.start(spec(f"trainer-{rank}", "pass", finite=True))
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(processes.watch())
            await processes.finished.wait()
            watching.cancel()

    run(use, Demand("trainer", 2, cpus=1))


def test_one_that_ends_badly_ends_the_watch_with_its_last_words(run):
    async def use(processes):
        await processes.start(spec("trainer-0", "raise SystemExit('my last words')", finite=True))
        with pytest.raises(ProcessDied, match=r"(?s)exited with 1.*my last words"):
            await processes.watch()

    run(use, Demand("trainer", 1, cpus=1))


def test_what_does_not_fit_is_refused_at_once(run):
    async def use(processes):
        raise AssertionError("never")

    with pytest.raises(ConfigError, match="too small"):
        run(use, Demand("engine", 5, cpus=1))
    with pytest.raises(ConfigError, match="no node is so large"):
        run(use, Demand("engine", 1, cpus=3))
