"""Groups at once, adapted while a run goes on (`rollout.concurrency = "adaptive"`)."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from .awake import ENGINES
from .buffer import Buffer
from .concurrency import Concurrency, EngineLoad, Look
from .config import RolloutConfig

log = logging.getLogger(__name__)

METRIC = "rollout/max_concurrent"
_SOONEST_S, _LATEST_S = 0.5, 10.0
"""Between two looks: often enough for a verdict, and no burden where groups take minutes."""
_LOOKS = 8
"""Looks that a verdict should rest on."""


class Loads(Protocol):
    """Who knows how busy the engines are (see engine_loads.EngineLoads)."""

    async def read(self) -> EngineLoad | None:
        """All in service; None where they do not answer."""
        ...


class TrainerSide(Protocol):
    """What is asked of a controller."""

    rollout_metrics: dict[str, float]

    @property
    def trainer_waits(self) -> bool: ...


async def adapt(
    config: RolloutConfig, buffer: Buffer, controller: TrainerSide, loads: Loads
) -> None:
    """Look at the engines now and then, and keep `buffer.limit` where it should be, until
    cancelled; returns at once where the configuration says a fixed number."""
    if config.concurrency == "fixed":
        return
    concurrency = Concurrency(config)
    buffer.limit = concurrency.limit
    controller.rollout_metrics[METRIC] = buffer.limit
    clock = ENGINES.time  # in their sleep they say nothing of how busy they would be
    pause_s, since_s = _SOONEST_S, clock()
    while True:
        await asyncio.sleep(pause_s)
        if ENGINES.asleep:
            continue
        load = await loads.read()
        if load is None:
            concurrency.restart()
            continue
        dropped = buffer.dropped
        verdict = concurrency.observe(
            Look(
                clock(),
                load,
                running=buffer.running,
                ended=buffer.accepted + sum(dropped.values()),
                stale=dropped["stale"],
                has_room=buffer.room >= 1,
                trainer_waits=controller.trainer_waits,
            )
        )
        if verdict is None:
            continue
        pause_s = min(max((clock() - since_s) / _LOOKS, _SOONEST_S), _LATEST_S)
        since_s = clock()
        changed = verdict.limit != verdict.before
        what = f"{verdict.limit} groups at once" + (f", not {verdict.before}" if changed else "")
        log.log(logging.INFO if changed else logging.DEBUG, "%s: %s", what, verdict.reason)
        controller.rollout_metrics[METRIC] = verdict.limit
        if changed:
            buffer.limit = verdict.limit
            buffer.changes.notify()
