"""A fleet of real (embedded) engine processes, for tests of it."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from arl_scale.members import Members
from safetensors.torch import load_file

from agentgym_rl.cluster import Forks, LocalProcesses
from agentgym_rl.config import Config, dump_toml, load_config
from agentgym_rl.core import SamplingParams
from agentgym_rl.engines import EngineSetup
from agentgym_rl.fleet import Fleet, turns_of
from agentgym_rl.fleet.servers import OwnServer
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.weights import Publisher, SharedFiles
from tests.e2e.forked import shared_fork_server
from tests.kit.publishing import published

NAMES = ["engine-0", "engine-1"]


class Running:
    def __init__(self, fleet: Fleet, processes: LocalProcesses, folder: Path) -> None:
        self.fleet, self.processes, self.folder = fleet, processes, folder
        self.members = Members(fleet)
        self.incarnation(0)

    def incarnation(self, number: int) -> None:
        """Who publishes from now on."""
        self._publisher = Publisher(
            transport=SharedFiles(self.folder, incarnation=number),
            interrupt="keep",
            timeout_s=30,
            polls_staging=False,
            incarnation=number,
            may_sleep=self.fleet.turns.shared,
        )

    async def publish(self, version: int) -> tuple[str, ...]:
        """As the trainer does it; who has it."""
        self._publisher.prepare(version, load_file(BUNDLED / "model.safetensors"))
        return (await published(self._publisher, self.fleet, version)).served

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def kill(self, name: str) -> None:
        os.kill(self.processes.pid(name), signal.SIGKILL)

    async def all_serve(self) -> set[int]:
        """Versions that answer, once both servers are in service."""
        await self.until(lambda: sorted(self.fleet.router.serving) == NAMES)
        return await self.versions(6)

    async def versions(self, count: int) -> set[int]:
        """Versions that answer `count` short requests of as many sessions."""
        found: set[int] = set()
        for number in range(count):
            name = f"s{time.monotonic_ns()}-{number}"
            async for delta in self.fleet.router.generate(
                [5, 80, 33], SamplingParams(max_tokens=2), request_id=name, session_id=name
            ):
                found |= set(delta.versions)
        return found


def forks() -> Forks:
    """Of one test, which hears nothing of the forks of another."""
    return Forks(shared_fork_server())


@asynccontextmanager
async def running(folder: Path, **keys: object) -> AsyncIterator[Running]:
    config: Config = load_config(None, {"engine.num_servers": 2, **keys})
    (folder / "config.toml").write_text(dump_toml(config))
    async with (
        asyncio.timeout(120),
        forks() as forked,
        LocalProcesses(folder / "logs", stop_timeout_s=2, forks=forked) as processes,
    ):
        fleet = Fleet(
            EngineSetup.of(config),
            folder / "config.toml",
            processes,
            model_dir=BUNDLED,
            weights_dir=folder,
            turns=turns_of(config.cluster, config.trainer, config.own_engine),
        )
        async with fleet.running():
            await fleet.ready()
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(fleet.watch())
                await asyncio.sleep(0)
                yield Running(fleet, processes, folder)
                watch.cancel()


@asynccontextmanager
async def somebody_elses_engine(folder: Path) -> AsyncIterator[tuple[LocalProcesses, str]]:
    """An engine that no fleet has started, nor watches; and its URL."""
    config: Config = load_config(None, {})
    (folder / "config.toml").write_text(dump_toml(config))
    async with (
        asyncio.timeout(120),
        forks() as forked,
        LocalProcesses(folder / "logs", stop_timeout_s=2, forks=forked) as processes,
    ):
        file = folder / "config.toml"
        server = OwnServer(EngineSetup.of(config), file, processes, index=0, incarnation=0)
        await server.start()
        await server.ready()
        yield processes, server.url
