"""Ranks that are lost within any command: dead ones, and ones that answer no more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from agentgym_rl.controller import Buffer, Controller, Plan, Ranks, RanksFailed
from agentgym_rl.core import Published, StepReport, Task
from agentgym_rl.run import Loop
from agentgym_rl.storage import EpisodeLog, MetricsFile, PhasesFile
from agentgym_rl.storage.metrics import read_metrics
from tests.kit.groups import Publications, make_group
from tests.kit.served import CONFIG

STEPS = 2
TRAINER = CONFIG.trainer.model_copy(update={"checkpoint_every": 1})


class Lost(Ranks):
    """Ranks that are lost once: at the call number `number` of the command `at`."""

    def __init__(self, at: str, number: int, *, silent: bool) -> None:
        self.at, self.left, self.silent = at, number, silent
        self.gone, self.ended = asyncio.Event(), asyncio.Event()

    async def _do(self, name: str) -> None:
        self.left -= name == self.at
        if name == self.at and self.left == 0:
            self.gone.set()
            if self.silent:
                await asyncio.Event().wait()
            raise RanksFailed(f"trainer-0: {name}: ConnectionError")

    async def train(self, step, shards):
        await self._do("train")
        names = list(dict.fromkeys(shards[0].group_ids))
        return StepReport(step, step + 1, {}, [], names)

    async def publish(self, version, engines, timeout_s):
        await self._do("publish")
        return Published(0.0, 0.0, dict.fromkeys(engines, (0.0, 0.0)), {})

    async def checkpoint(self, step):
        await self._do("checkpoint")
        return {}

    async def complete(self, metrics) -> Path | None:
        await self._do("complete")

    async def export(self):
        await self._do("export")

    async def stop(self):
        await self._do("stop")
        self.ended.set()

    def lost(self, error):
        assert not self.silent


@asynccontextmanager
async def begun(path: Path, ranks: Ranks) -> AsyncIterator[tuple[Loop, Controller]]:
    """A loop over two batches, whose groups have been played."""
    log, metrics, phases = (
        EpisodeLog(path / "episodes.db"),
        MetricsFile(path / "metrics.jsonl"),
        PhasesFile(path),
    )
    controller = Controller(
        *(TRAINER, CONFIG.algo, Buffer(CONFIG.rollout, total_groups=4, log=log)),
        *(log, metrics, phases),
        plan=Plan(TRAINER, CONFIG.eval, steps=STEPS),
        publications=Publications(e="http://e"),
        devices=None,
        on_step=lambda *_: None,
    )
    for name in "abcd":
        group = make_group(name, [0])
        controller.buffer.admit()
        await log.add_group(Task(group.task_id, 0), 0, group)
        controller.buffer.accept(group)
    loop = Loop(controller, ranks)
    running = asyncio.create_task(loop.run())
    try:
        async with asyncio.timeout(60):
            yield loop, controller
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        for file in (log, metrics, phases):
            file.close()


@pytest.mark.parametrize("silent", [False, True], ids=["dead", "silent"])
@pytest.mark.parametrize(
    ("command", "number"),
    [
        *((command, number) for command in ("train", "publish", "checkpoint") for number in (1, 2)),
        *(("complete", 1), ("complete", 2), ("export", 1), ("stop", 1)),
    ],
)
def test_each_batch_is_recorded_once_wherever_ranks_are_lost(tmp_path, command, number, silent):
    async def play() -> None:
        ranks = Lost(command, number, silent=silent)
        async with begun(tmp_path, ranks) as (loop, controller):
            await ranks.gone.wait()
            await loop.interrupt()
            assert not controller.trainer_ready
            assert await loop.regroup(0, None) == 1
            await ranks.ended.wait()
            assert controller.version == len(controller.history) == STEPS

    asyncio.run(play())
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1]


def test_a_checkpoint_that_ranks_give_up_is_no_secret(tmp_path, caplog):
    async def play() -> None:
        ranks = Lost("nothing", 0, silent=True)
        async with begun(tmp_path, ranks):
            await ranks.ended.wait()

    asyncio.run(play())
    given_up = [text for text in caplog.messages if text.startswith("no checkpoint of step")]
    assert [text.split(":")[0] for text in given_up] == [
        f"no checkpoint of step {step}" for step in (1, 2)
    ]


class Evaluations:
    """Scheduled evaluations, all of which are still missing."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.due: dict[int, bool] = {}

    def owed(self, version: int) -> bool:
        self.asked.append(version)
        return True

    def began(self) -> None:
        self.asked.append(0)

    def published(self, version: int, parameters: str, *, due: bool) -> None:
        self.due[version] = due


def test_evaluations_are_those_of_the_versions_after_new_batches(tmp_path):
    async def play() -> Evaluations:
        ranks = Lost("none", 1, silent=False)
        async with begun(tmp_path, ranks) as (_, controller):
            controller.evaluations = found = Evaluations()
            await ranks.ended.wait()
            return found

    found = asyncio.run(play())
    assert found.asked == [0, 1, 2]
    assert found.due == {1: True, 2: False}  # the last one is that of the end
