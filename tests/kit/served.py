"""A loop with a buffer and a log, and ranks that a test plays (`tests/kit/pulled.py`)."""

import asyncio
from contextlib import asynccontextmanager

from agentgym_rl.config import Config, RolloutConfig, TrainerConfig
from agentgym_rl.controller import Buffer, Plan
from agentgym_rl.controller.controller import Devices
from agentgym_rl.core import StepReport, Task
from agentgym_rl.run import Loop
from agentgym_rl.storage import EpisodeLog, MetricsFile, PhasesFile
from tests.kit.groups import Publications
from tests.kit.pulled import OnDemandController, PulledRanks

CONFIG = Config(
    rollout=RolloutConfig(groups_per_batch=2, max_staleness=1),
    trainer=TrainerConfig(num_ranks=2, num_minibatches=1),
)


class Served:
    def __init__(self, controller: OnDemandController, ranks: PulledRanks, log: EpisodeLog):
        self.controller, self.ranks, self.log = controller, ranks, log

    async def add(self, *groups) -> None:
        for group in groups:
            self.controller.buffer.admit()
            await self.log.add_group(Task(group.task_id, 0), 0, group)
            self.controller.buffer.accept(group)

    async def train(self, step: int, metrics=None, **more):
        """The next batch is trained; return its metrics."""
        shard = await self.ranks.batch(step, 0)
        names = list(dict.fromkeys(shard.group_ids))
        report = StepReport(step, step + 1, metrics or {}, [], names, **more)
        return await self.ranks.report(report, life=self.ranks.life)


@asynccontextmanager
async def served(
    path,
    fleet: Publications | None = None,
    devices: Devices | None = None,
    algo=CONFIG.algo,
    trainer=CONFIG.trainer,
    steps=CONFIG.steps,
    **loop,
):
    log = EpisodeLog(path / "episodes.db")
    metrics = MetricsFile(path / "metrics.jsonl")
    phases = PhasesFile(path)
    controller = OnDemandController(
        trainer,
        algo,
        Buffer(CONFIG.rollout, total_groups=100, log=log),
        log,
        metrics,
        phases,
        plan=Plan(trainer, CONFIG.eval, steps=steps),
        publications=fleet or Publications(e="http://e"),
        devices=devices,
        on_step=lambda *_: None,
    )
    ranks = PulledRanks(controller)
    ranks.loop = Loop(controller, ranks, **loop)
    running = ranks.begin(ranks.loop)
    try:
        async with asyncio.timeout(60):
            yield Served(controller, ranks, log)
    finally:
        running.cancel()
        await asyncio.wait([running])
        log.close()
        metrics.close()
        phases.close()
