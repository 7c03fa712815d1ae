"""The load of a run's engines, which they report on /metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import get_args

from agentgym_rl.core import EngineError, EngineLoad
from agentgym_rl.engines import EngineClient, Measure, Total

log = logging.getLogger(__name__)

_TIMEOUT_S = 2.0
_COUNT_EVERY_S = 2.0


class EngineLoads:
    """A reader of the load of the engines in service; its totals continue when engines restart."""

    def __init__(self, engines: Callable[[], Mapping[str, EngineClient]]) -> None:
        """Set up the reader. `engines` returns the engines in service now, by name."""
        self._engines = engines
        self._counted: dict[tuple[str, Measure], float] = {}
        self._total: dict[Total, float] = dict.fromkeys(get_args(Total), 0.0)

    async def read(self) -> EngineLoad | None:
        """Return the load of all engines together; None if there is none or one does not answer."""
        measured = await self._query()
        if not measured:
            return None
        for name, measures in measured.items():
            self._count(name, measures)
        found = measured.values()
        return EngineLoad(
            engines=len(found),
            running=sum(each["running"] for each in found),
            waiting=sum(each["waiting"] for each in found),
            kv_use=max(each["kv_use"] for each in found),
            **self._total,
        )

    async def keep_counts(self, numbers: dict[str, float]) -> None:
        """Keep `engine/...` in the numbers of a run up to date, until cancelled."""
        while True:
            if load := await self.read():
                numbers["engine/prompt_tokens"] = load.prompts
                numbers["engine/prefilled_tokens"] = load.prefilled
                numbers["engine/reused_tokens"] = load.reused
            await asyncio.sleep(_COUNT_EVERY_S)

    async def _query(self) -> dict[str, dict[Measure, float]]:
        """Return the measures of each engine, by its name; {} if one does not answer."""
        queries: dict[str, asyncio.Task[dict[Measure, float]]] = {}
        try:
            async with asyncio.timeout(_TIMEOUT_S), asyncio.TaskGroup() as tasks:
                for name, engine in self._engines().items():
                    queries[name] = tasks.create_task(engine.measures(), name=f"load of {name}")
        except* (EngineError, TimeoutError) as group:
            log.debug("an engine does not report its load: %r", group.exceptions[0])
            queries.clear()
        return {name: task.result() for name, task in queries.items()}

    def _count(self, engine: str, measures: Mapping[Measure, float]) -> None:
        """Add what an engine has counted since the last time to the totals."""
        for key in self._total:
            now = measures[key]
            before = self._counted.get((engine, key), now)
            again = now < before  # the engine was restarted, and counts from 0 again
            self._total[key] += now - (0.0 if again else before)
            self._counted[engine, key] = now
