"""The engines in virtual time: slots, decode steps, prefills, KV memory, updates; and the fleet,
whose sessions go to the engine that the gateway's router would choose.

Every running request gets one token a step, so a request that joins at step s with n tokens to go
leaves at step s + n: between two events nothing has to be computed, whatever the lengths.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, cast, get_args

from agentgym_rl.core import ConfigError, Engine, EngineLoad, Interrupt, swap_waves
from agentgym_rl.engines import Replica, Replicas
from agentgym_rl.runtime import LruDict

from .clock import Cores, Work
from .rates import EngineRates

State = Literal["idle", "decode", "prefill", "paused"]

_ROUNDING = 1e-6
_WATERMARK = 0.01
"""The share of the KV memory that is kept free when a request is admitted, as vLLM does."""
_REMEMBERED = 100_000
"""The number of sessions and groups whose cached tokens are remembered."""


@dataclass(slots=True, eq=False)
class Request:
    """A request for `left` tokens after `context` tokens, of which `cached` need no prefill."""

    context: int
    left: float
    cached: int
    done: asyncio.Future[bool]
    """The result: True if the request got all its tokens, False if it was cut off with fewer."""
    group: str = ""
    prompt: int = 0
    """The tokens with which all requests of the group begin."""
    versions: list[int] = field(default_factory=list[int])
    """The versions that sampled it, oldest first."""
    sampled: float = 0.0
    joined: float = 0.0
    """The engine's step at which the request joined the running ones."""
    end: float = 0.0


class SimulatedEngine:
    """The simulation of one server of `arl engine`."""

    def __init__(
        self, name: str, rates: EngineRates, cores: Cores, *, slots: int, demand: float
    ) -> None:
        self.name = name
        self.version = 0
        self.tokens = 0.0
        """The tokens sampled so far."""
        self.request_s = 0.0
        """The number of running requests, integrated over time."""
        self.preemptions = 0
        self._rates = rates
        self._cores = cores
        self._slots = slots
        self._demand = demand
        self._loop = asyncio.get_running_loop()
        self._running: dict[int, Request] = {}
        self._ends: list[tuple[float, int, Request]] = []
        self._waiting: deque[Request] = deque()
        self._held: deque[Request] = deque()
        self._holds = False
        self._frozen = False
        self._rebuilds = False
        self._order = count()
        self._step = 0.0
        self._context = 0.0
        self._work: Work | None = None
        self._planned = 0.0
        self._prefilling = False
        self._woken = False
        self._drained: asyncio.Future[None] | None = None
        self._seconds: dict[State, float] = dict.fromkeys(get_args(State), 0.0)
        self._state: State = "idle"
        self._since = self._loop.time()

    # ------------------------------------------------------------------ requests
    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ConfigError: the request alone does not fit into the memory.
        """
        limit = self._rates.kv_tokens
        if limit is not None and request.context + request.left > limit:
            raise ConfigError(
                f"an episode of {request.context + request.left:.0f} tokens does not fit into the "
                f"KV memory of an engine, {limit} tokens: raise engine.tensor_parallel_size, or "
                "lower rollout.max_tokens"
            )
        (self._held if self._holds else self._waiting).append(request)
        self._wake()

    @property
    def seconds(self) -> dict[State, float]:
        """Return the seconds spent in each state so far."""
        self._enter(self._state)
        return dict(self._seconds)

    @property
    def running(self) -> int:
        """Return the number of requests that are decoded."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Return the number of queued requests, without those that an update holds back."""
        return len(self._waiting)

    @property
    def kv_use(self) -> float:
        """Return the share of the KV memory in use, as of the last event; 0 without a limit."""
        return self._context / self._rates.kv_tokens if self._rates.kv_tokens else 0.0

    def count_tokens(self) -> float:
        """Return the tokens sampled so far, up to this moment."""
        self._settle()
        self._wake()
        return self.tokens

    # ------------------------------------------------------------------ updates
    async def update(self, version: int, *, interrupt: Interrupt, pause_s: float) -> None:
        """Swap to `version`, sampling nothing for `pause_s` seconds of work."""
        if interrupt == "wait":
            await self._drain()
        self._settle()
        self._frozen = self._holds = True
        if interrupt == "abort":
            self._cut_off()
        self._enter("paused")
        await self._cores.work(pause_s, demand=self._demand)
        self.version = version
        for request in self._running.values():
            request.versions.append(version)
        self._rebuilds = interrupt == "recompute" and bool(self._running)
        self._frozen = self._holds = False
        self._waiting += self._held
        self._held.clear()
        self._enter("prefill" if self._prefilling else "idle")
        self._wake()

    async def _drain(self) -> None:
        self._holds = True
        if self._running or self._waiting or self._prefilling:
            self._drained = self._loop.create_future()
            await self._drained
            self._drained = None

    def _cut_off(self) -> None:
        requests = [*self._running.values(), *self._waiting]
        for request in self._running.values():
            request.sampled = self._step - request.joined
        self._running.clear()
        self._waiting.clear()
        self._ends.clear()
        self._context = 0.0
        for request in requests:
            request.done.set_result(False)

    # ------------------------------------------------------------------ the event loop
    def _wake(self) -> None:
        """Schedule `_look` once, after all other events of this moment."""
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._woken = False
        self._settle()
        if self._prefilling:
            return
        self._retire()
        if self._frozen:
            return
        self._preempt()
        tokens, rounds = self._admit()
        if self._rebuilds:
            self._rebuilds = False
            tokens, rounds = tokens + int(self._context) - self._shared(), rounds + 1
        seconds = rounds * self._rates.prefill_s + tokens * self._rates.prefill_s_per_token
        if seconds > 0:
            self._prefilling = True
            self._enter("prefill")
            self._cores.begin(seconds, self._prefilled, demand=self._demand)
        elif self._running:
            self._decode()
        else:
            self._enter("idle")

    def _shared(self) -> int:
        """Return the tokens that running requests need not compute, since others of their group
        do."""
        if not self._rates.prefix_cache:
            return 0
        first = {request.group: request for request in self._running.values()}
        prompts = sum(request.prompt for request in self._running.values())
        return prompts - sum(request.prompt for request in first.values())

    def _prefilled(self) -> None:
        self._prefilling = False
        if not self._frozen:
            self._enter("idle")
        self._look()

    def _decode(self) -> None:
        """Decode until the next request is done, or the memory is full."""
        steps = self._next_end() - self._step
        limit = self._rates.kv_tokens
        if limit is not None:
            steps = min(steps, max(1.0, (limit - self._context) / len(self._running)))
        self._planned = steps
        self._enter("decode")
        self._work = self._cores.begin(self._seconds_of(steps), self._decoded, demand=self._demand)

    def _decoded(self) -> None:
        self._work = None
        self._advance(self._planned)
        self._look()

    def _settle(self) -> None:
        """Stop decoding and count the tokens decoded so far."""
        if self._work is not None:
            seconds = self._cores.stop(self._work)
            self._work = None
            self._advance(min(self._steps_in(seconds), self._planned))
            self._enter("idle")

    def _advance(self, steps: float) -> None:
        running = len(self._running)
        self._step += steps
        self._context += steps * running
        self.tokens += steps * running

    def _seconds_of(self, steps: float) -> float:
        """Return the seconds of `steps` decode steps, during which the contexts grow."""
        rates, running = self._rates, len(self._running)
        first = self._step_s()
        return steps * first + rates.step_s_per_context_token * running * steps * steps / 2

    def _steps_in(self, seconds: float) -> float:
        """Return the decode steps that fit into `seconds`: the inverse of `_seconds_of`."""
        half = self._rates.step_s_per_context_token * len(self._running) / 2
        first = self._step_s()
        if half == 0 or first * first > 1e12 * half * seconds:
            return seconds / first if first else math.inf
        return (math.sqrt(first * first + 4 * half * seconds) - first) / (2 * half)

    def _step_s(self) -> float:
        rates = self._rates
        return (
            rates.step_s
            + rates.step_s_per_request * len(self._running)
            + rates.step_s_per_context_token * self._context
        )

    # ------------------------------------------------------------------ scheduling
    def _next_end(self) -> float:
        while self._ends[0][1] not in self._running:
            heapq.heappop(self._ends)
        return self._ends[0][0]

    def _retire(self) -> None:
        while self._running and self._next_end() <= self._step + _ROUNDING:
            _, number, request = heapq.heappop(self._ends)
            del self._running[number]
            self._context -= request.context + (request.end - request.joined)
            request.sampled = request.left
            request.done.set_result(True)
        if not self._running:
            self._context = 0.0
            if self._drained is not None and not self._waiting and not self._drained.done():
                self._drained.set_result(None)

    def _preempt(self) -> None:
        """Put the latest request back into the queue while the memory is full; it starts again with
        a prefill of all its tokens."""
        limit = self._rates.kv_tokens
        if limit is None:
            return
        while self._context > limit - _ROUNDING and len(self._running) > 1:
            number, request = self._running.popitem()
            sampled = self._step - request.joined
            self._context -= request.context + sampled
            request.context += round(sampled)
            request.left -= sampled
            request.cached = 0
            self._waiting.appendleft(request)
            self.preemptions += 1
            assert number not in self._running

    def _admit(self) -> tuple[int, int]:
        """Admit the requests that fit; return the tokens and number (0 or 1) of the prefill."""
        tokens, joined = 0, 0
        while self._waiting and len(self._running) < self._slots:
            request = self._waiting[0]
            if not self._has_room(request):
                break
            self._waiting.popleft()
            tokens += max(request.context - request.cached, 0)
            joined += 1
            number = next(self._order)
            request.joined, request.end = self._step, self._step + request.left
            if not request.versions or request.versions[-1] != self.version:
                request.versions.append(self.version)
            self._running[number] = request
            self._context += request.context
            heapq.heappush(self._ends, (request.end, number, request))
        return tokens, int(joined > 0)

    def _has_room(self, request: Request) -> bool:
        limit = self._rates.kv_tokens
        if limit is None:
            return True
        return self._context + request.context <= limit * (1 - _WATERMARK) or not self._running

    def _enter(self, state: State) -> None:
        now = self._loop.time()
        self._seconds[self._state] += now - self._since
        self.request_s += len(self._running) * (now - self._since)
        self._since, self._state = now, state


class SimulatedFleet:
    """The engines of a run, as its rollout and its trainer see them."""

    wanted = False
    silent_s: Mapping[str, float] = {}

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
        self._computed: LruDict[tuple[str, str, int], int] = LruDict(_REMEMBERED)
        """The tokens that a replica has computed under a version, of a session or of the prompt of
        a group."""
        self._prompts: LruDict[str, int] = LruDict(_REMEMBERED)
        """The tokens of the prompt of each group."""

    async def sample(self, session_id: str, group: str, context: int, tokens: int) -> set[int]:
        """Sample a reply in a session of a group and return the versions that sampled it."""
        versions: set[int] = set()
        left = float(tokens)
        whole = False
        while not whole:
            replica, _ = self._replicas.choose(session_id)
            engine = self._engines[replica.name]
            request = self._request(session_id, group, context, left, engine)
            replica.sent()
            engine.submit(request)
            try:
                whole = await request.done
            finally:
                replica.left(after_s=0.0)
            versions.update(request.versions)
            context += round(request.sampled)
            left = max(left - request.sampled, 1.0)
            self._computed[session_id, engine.name, engine.version] = context
        return versions

    def _request(
        self, session_id: str, group: str, context: int, left: float, engine: SimulatedEngine
    ) -> Request:
        prompt = self._prompts.get(group) or context
        known = [
            self._computed.get((name, engine.name, engine.version)) or 0
            for name in (session_id, group)
        ]
        self._prompts[group] = self._computed[group, engine.name, engine.version] = prompt
        cached = max(known) if self._prefix_cache else 0
        done = asyncio.get_running_loop().create_future()
        return Request(context, left, cached, done, group, prompt)

    # ------------------------------------------------------------------ versions
    @property
    def urls(self) -> dict[str, str]:
        """Return the engines, which have no URLs, as those of a publication."""
        return dict.fromkeys(self._engines, "")

    @property
    def waves(self) -> list[Sequence[str]]:
        """Return the engines in the order of their swaps."""
        return [[*self._engines]] if self._at_once else swap_waves([*self._engines])

    async def swap(self, version: int, names: Sequence[str], *, pause_s: float) -> None:
        """Swap engines to the staged version, at the same time."""
        self._replicas.begin_update(names)
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                swap = self._engines[name].update(
                    version, interrupt=self._interrupt, pause_s=pause_s
                )
                tasks.create_task(swap, name=f"swap {name}")
        self._replicas.end_update(version, names)

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
