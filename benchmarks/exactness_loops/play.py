"""Episodes on a real engine whose weights change meanwhile, to be compared afterwards."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import aiohttp
from arl_vllm.client import MAX_LOGPROBS, VllmEngine
from torch import Tensor

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import Interrupt
from agentgym_rl.engines import Router
from agentgym_rl.gateway import ChatFormat, Gateway, SessionRecord, SessionSampling
from agentgym_rl.weights import Publisher, SharedFiles
from benchmarks._common import say
from tests.kit.publishing import published

from .babbler import MAX_MODEL_LEN
from .client import Client

AT_ONCE = 24
MAX_TOKENS = 96
_TURN_S = 120.0
# Turns take tens of milliseconds, and updates have to meet some of them: each begins a random
# while after the one before, at the next moment in which a turn is under way.
_UPDATE_AFTER_S = {"embedded": (0.02, 0.1), "vllm": (0.05, 0.3)}
_LOOK_EVERY_S = 0.002
_INTERRUPTS: tuple[Interrupt, ...] = get_args(Interrupt)


@dataclass
class Played:
    """An episode: its record, its client, and the expected properties."""

    record: SessionRecord
    client: Client
    names: list[str]
    """The request of each turn."""
    end_ids: Sequence[int]
    """The tokens that end a reply in its chat format."""
    temperature: float
    one_row: bool
    """Whether nothing happened in it that may fork the conversation."""


@dataclass
class Engine:
    """An engine; `sampled` is its URL, or that of a relay in front of it."""

    url: str
    sampled: str
    is_vllm: bool


async def play(
    engine: Engine,
    chats: Mapping[str, ChatFormat],
    weights: Sequence[Mapping[str, Tensor]],
    folder: Path,
    *,
    episodes: int,
    seed: int,
) -> tuple[list[Played], Counter[str]]:
    """Play all episodes, a share of them under each interrupt mode; return them, and the routers'
    counters. `weights` are the policies, served in turn as versions 0, 1, 2, …"""
    played: list[Played] = []
    counters: Counter[str] = Counter()
    source = VllmEngine(
        engine.sampled,
        send_seed=not engine.is_vllm,
        polls_staging=engine.is_vllm,
        num_alternatives=MAX_LOGPROBS if engine.is_vllm else 0,
    )
    try:
        version = 0
        for number, interrupt in enumerate(_INTERRUPTS):
            share = len(range(number, episodes, len(_INTERRUPTS)))
            if not share:
                continue
            updates = _Updates(engine, interrupt, weights, folder, version)
            async with updates.going_on(source) as router:
                chance = random.Random(f"{seed}/{interrupt}")
                # A turn under a grammar begins again at each abort: several a second starve it.
                forces = interrupt != "abort"
                played += await _episodes(router, chats, share, chance, forces=forces)
            say(f"{interrupt}: {len(played)} episodes, {updates.version} updates")
            version = updates.version
            counters.update(router.counters)
        counters["updates"] = version
    finally:
        await source.close()
    return played, counters


class _Updates:
    """A publisher of version after version, at random moments in which turns are in progress."""

    def __init__(
        self,
        engine: Engine,
        interrupt: Interrupt,
        weights: Sequence[Mapping[str, Tensor]],
        folder: Path,
        version: int,
    ) -> None:
        self.version = version
        self._weights = weights
        self._engine = engine
        self._after_s = _UPDATE_AFTER_S["vllm" if engine.is_vllm else "embedded"]
        self._router = Router(interrupt=interrupt, wait_s=_TURN_S)
        self._publisher = Publisher(
            transport=SharedFiles(folder),
            interrupt=interrupt,
            timeout_s=_TURN_S,
            polls_staging=engine.is_vllm,
        )

    @asynccontextmanager
    async def going_on(self, source: VllmEngine) -> AsyncIterator[Router]:
        await source.name_version(self.version)
        self._router.add("engine-0", source, version=self.version)
        stop = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._publish(stop), name="updates")
                try:
                    yield self._router
                finally:
                    stop.set()
        finally:
            self._publisher.close()

    async def _publish(self, stop: asyncio.Event) -> None:
        draw = random.Random(self.version)
        after_s = draw.uniform(*self._after_s)
        while not stop.is_set():
            try:
                async with asyncio.timeout(after_s):
                    await stop.wait()
            except TimeoutError:
                after_s = _LOOK_EVERY_S
                if any(replica.load for replica in self._router.replicas):
                    await self._next()
                    after_s = draw.uniform(*self._after_s)

    async def _next(self) -> None:
        version = self.version + 1
        weights = self._weights[version % len(self._weights)]
        await asyncio.to_thread(self._publisher.prepare, version, weights)
        self._router.begin_update(version)
        urls = {"engine-0": self._engine.url}
        done = await published(self._publisher, urls, version)
        self._router.end_update(version, done.served)
        self.version = version


async def _episodes(
    router: Router,
    chats: Mapping[str, ChatFormat],
    count: int,
    chance: random.Random,
    *,
    forces: bool,
) -> list[Played]:
    played: list[Played] = []
    async with AsyncExitStack() as stack:
        timeout = aiohttp.ClientTimeout(total=2 * _TURN_S)
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=timeout, connector=connector)
        )
        tables = [
            await _Table.serve(stack, http, router, name, chat, history, edited)
            for name, chat in chats.items()
            for history in ("as_generated", "template")
            for edited in ("fork", "trust")
        ]
        todo = iter(range(count))
        async with asyncio.TaskGroup() as tasks:

            async def worker() -> None:
                for number in todo:
                    table = tables[number % len(tables)]
                    played.append(await table.play(random.Random(chance.random()), forces=forces))

            for _ in range(min(AT_ONCE, count)):
                tasks.create_task(worker())
    return played


@dataclass
class _Table:
    """A gateway for one chat template under one configuration."""

    http: aiohttp.ClientSession
    gateway: Gateway
    url: str
    name: str
    end_ids: Sequence[int]
    history: str

    @classmethod
    async def serve(
        cls,
        stack: AsyncExitStack,
        http: aiohttp.ClientSession,
        router: Router,
        name: str,
        chat: ChatFormat,
        history: str,
        edited: str,
    ) -> _Table:
        config = GatewayConfig.model_validate(
            {"thinking_history": history, "edited_calls": edited, "disconnect_grace_s": 0.3}
        )
        gateway = Gateway(router, chat, config=config, model_name="m", max_model_len=MAX_MODEL_LEN)
        url = await stack.enter_async_context(gateway.serve())
        return cls(http, gateway, url, name, chat.stop_token_ids, history)

    async def play(self, chance: random.Random, *, forces: bool) -> Played:
        temperature = chance.choices([0.7, 1.0, 1.3, 2.0, 0.0], [3, 5, 3, 1, 0.5])[0]
        sampling = SessionSampling(
            max_tokens=MAX_TOKENS, temperature=temperature, seed=chance.getrandbits(40)
        )
        session = self.gateway.open_session(
            sampling=sampling, session_id="x", turn_timeout_s=_TURN_S
        )
        no_thinking = self.name == "qwen3" and chance.random() < 0.2
        policy = {"chat_template_kwargs": {"enable_thinking": False}} if no_thinking else {}
        with_tools = self.name != "chatml"
        client = Client(self.http, self.url, session.key, chance, with_tools, forces, policy)
        plain = chance.random() < 0.4
        await client.play(chance.randrange(2, 8), plain=plain)
        record = self.gateway.close_session(session)
        names = [session.request_id(node.request) for node in session.tree.turns]
        # GLM's turns end with the token that opens the next one: another one forks (`seam`).
        one_row = plain and self.history == "as_generated" and self.name != "glm"
        return Played(record, client, names, self.end_ids, temperature, one_row)
