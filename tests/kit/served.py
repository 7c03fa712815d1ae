"""A controller with a buffer and a log, over real HTTP."""

import asyncio
from contextlib import asynccontextmanager

import aiohttp

from agentgym_rl.config import Config, RolloutConfig, TrainerConfig
from agentgym_rl.controller.api import ControllerApi
from agentgym_rl.controller.buffer import Buffer
from agentgym_rl.controller.controller import Controller, Devices
from agentgym_rl.controller.schedule import Plan
from agentgym_rl.core.task import Task
from agentgym_rl.run.loop import Loop
from agentgym_rl.runtime.http_server import serving
from agentgym_rl.storage.episode_log import EpisodeLog
from agentgym_rl.storage.metrics import MetricsFile
from agentgym_rl.storage.phases import PhasesFile
from tests.kit.groups import Publications

CONFIG = Config(
    rollout=RolloutConfig(groups_per_batch=2, max_staleness=1),
    trainer=TrainerConfig(num_ranks=2, num_minibatches=1),
)


class Served:
    def __init__(self, controller: Controller, http: aiohttp.ClientSession, log: EpisodeLog):
        self.controller, self.http, self.log = controller, http, log

    async def add(self, group) -> None:
        self.controller.buffer.admit()
        await self.log.add_group(Task(group.task_id, 0), 0, group)
        self.controller.buffer.accept(group)


@asynccontextmanager
async def served(
    path, fleet: Publications | None = None, devices: Devices | None = None, algo=CONFIG.algo
):
    log = EpisodeLog(path / "episodes.db")
    metrics = MetricsFile(path / "metrics.jsonl")
    phases = PhasesFile(path)
    buffer = Buffer(CONFIG.rollout, total_groups=100)
    controller = Controller(
        CONFIG.trainer,
        algo,
        buffer,
        log,
        metrics,
        phases,
        plan=Plan(CONFIG.trainer, CONFIG.eval, steps=CONFIG.steps),
        publications=fleet or Publications(),
        devices=devices,
        token="secret",
        on_step=lambda *_: None,
    )
    loop = asyncio.create_task(Loop(controller).run())
    api = ControllerApi(controller, num_ranks=2)
    async with serving(api, host="127.0.0.1", port=0) as url:
        headers = {"authorization": "Bearer secret"}
        async with aiohttp.ClientSession(url, headers=headers) as http:
            yield Served(controller, http, log)
    loop.cancel()
    log.close()
    metrics.close()
    phases.close()
