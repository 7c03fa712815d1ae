"""The simulated engines of a run: sessions go to the engine that the gateway's router would choose,
and versions are swapped as in real runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from agentgym_rl.core.engine import Engine, EngineLoad, Interrupt
from agentgym_rl.engines.router.replicas import Replica, Replicas

from .engine import Request, SimulatedEngine, State


class SimulatedFleet:
    """The engines of a run, as its rollout and its trainer see them."""

    wanted = False

    def __init__(
        self,
        engines: Sequence[SimulatedEngine],
        *,
        interrupt: Interrupt,
        at_once: bool,
        prefix_cache: bool,
    ) -> None:
        """Create the fleet; `at_once`: all engines swap together, as with collective transports."""
        self._engines = {engine.name: engine for engine in engines}
        self._interrupt: Interrupt = interrupt
        self._at_once = at_once
        self._prefix_cache = prefix_cache
        self._replicas = Replicas()
        for engine in engines:
            # Replicas chooses by the replica's load and never calls the engine itself.
            self._replicas.add(Replica(engine.name, cast(Engine, engine), 0, has_spans=True))
        self._cached: dict[str, tuple[Replica, int, int]] = {}
        """The last turn of each session: its replica, the version, and the tokens after it."""

    async def sample(self, session_id: str, context: int, tokens: int) -> set[int]:
        """Sample a reply and return the versions that sampled it."""
        loop = asyncio.get_running_loop()
        versions: set[int] = set()
        left = float(tokens)
        whole = False
        while not whole:
            replica, _ = self._replicas.choose(session_id)
            engine = self._engines[replica.name]
            cached = self._cached_tokens(session_id, replica, engine)
            request = Request(context, left, cached, loop.create_future())
            replica.asked()
            engine.submit(request)
            try:
                whole = await request.done
            finally:
                replica.left(after_s=0.0)
            versions.update(request.versions)
            context += round(request.sampled)
            left = max(left - request.sampled, 1.0)
            self._cached[session_id] = (replica, engine.version, context)
        return versions

    def forget(self, session_id: str) -> None:
        """Forget a session that has ended."""
        self._cached.pop(session_id, None)

    def _cached_tokens(self, session_id: str, replica: Replica, engine: SimulatedEngine) -> int:
        if not self._prefix_cache or session_id not in self._cached:
            return 0
        where, version, tokens = self._cached[session_id]
        return tokens if where is replica and version == engine.version else 0

    # ------------------------------------------------------------------ versions
    async def begin_publication(self, version: int) -> dict[str, str]:
        self._replicas.begin_update()
        return dict.fromkeys(self._engines, "")

    async def swap(self, version: int, *, pause_s: float) -> None:
        """Swap every engine to the staged version."""
        swaps = [
            engine.update(version, interrupt=self._interrupt, pause_s=pause_s)
            for engine in self._engines.values()
        ]
        if not self._at_once:
            for swap in swaps:
                await swap
            return
        async with asyncio.TaskGroup() as tasks:
            for name, swap in zip(self._engines, swaps, strict=True):
                tasks.create_task(swap, name=f"swap {name}")

    async def end_publication(
        self, version: int, *, served: Iterable[str], failed: Mapping[str, str]
    ) -> None:
        self._replicas.end_update(version, served)

    # ------------------------------------------------------------------ numbers
    def count_tokens(self) -> float:
        """Return the tokens sampled so far."""
        return sum(engine.count_tokens() for engine in self._engines.values())

    async def read(self) -> EngineLoad:
        """Return the load of all engines; see concurrency.Loads."""
        engines = self._engines.values()
        return EngineLoad(
            engines=len(engines),
            running=sum(engine.running for engine in engines),
            waiting=sum(engine.waiting for engine in engines),
            tokens=self.count_tokens(),
            put_back=self.preemptions,
            kv_use=max(engine.kv_use for engine in engines),
        )

    @property
    def seconds(self) -> dict[State, float]:
        """Return the seconds of all engines together by state."""
        each = [engine.seconds for engine in self._engines.values()]
        return {state: sum(spent[state] for spent in each) for state in each[0]}

    @property
    def request_s(self) -> float:
        """Return the number of running requests of all engines, integrated over time."""
        return sum(engine.request_s for engine in self._engines.values())

    @property
    def preemptions(self) -> int:
        """Return how often a request lost its place to others because the KV memory was full."""
        return sum(engine.preemptions for engine in self._engines.values())
