"""The servers of a fleet: processes of ours, or servers that ran before us."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path

import aiohttp

from agentgym_rl.cluster.processes import Processes
from agentgym_rl.config import Config, VllmEngineConfig
from agentgym_rl.core.engine import UNKNOWN_VERSION, Interrupt, version_label
from agentgym_rl.core.errors import EngineError, ProcessDied
from agentgym_rl.engines.client.client import HttpEngine
from agentgym_rl.engines.launch import engine_name, engine_process
from agentgym_rl.engines.vllm.build import check_interrupt, find_build
from agentgym_rl.engines.vllm.checks import check_server

log = logging.getLogger(__name__)

POLL_S = 0.2
ASK_EVERY_S = 1.0
ASK_TIMEOUT_S = 1.0
ASK_AGAIN_S = 0.25
SILENCE_LIMIT_S = 4.0
"""With the above, one that falls silent is found out within 4.5 s."""
REPORT_EVERY_S = 30.0


class Server(ABC):
    """One engine behind a URL, and how its life is followed."""

    def __init__(self, name: str, url: str, engine: HttpEngine) -> None:
        self.name = name
        self.url = url
        self.engine = engine
        self.restarts = 0
        self.first_life = 0
        """Lives that servers of its name have had before it."""
        self.serves = False
        """Whether it has been put in service, at a version of this run."""
        self.seed: int | None = None
        """What its sampling began with, where nobody but the server itself knows."""

    @property
    def life(self) -> str:
        """Its name, other each time it is started: "engine-1#2" after two restarts."""
        number = self.first_life + self.restarts
        return f"{self.name}#{number}" if number else self.name

    @abstractmethod
    async def start(self) -> None:
        """Set it going; `ready` waits for it."""

    @abstractmethod
    async def ready(self) -> None:
        """Wait until it answers.

        Raises:
            ProcessDied: it ended, or did not answer in time.
            ConfigError: it answers, but is not what the configuration asks for.
        """

    @abstractmethod
    async def ended(self) -> Exception:
        """Wait until it is dead or silent; returns what happened."""

    @abstractmethod
    async def restart(self) -> None:
        """Set it going again after it ended."""

    @abstractmethod
    async def retire(self, why: str) -> None:
        """It can no longer be trusted: end it if it is ours, and let `ended` return."""

    async def release(self) -> None:
        """It belongs to the run no more: end it if it is ours, and free what it was given."""
        await self.engine.close()

    def suspect(self) -> None:  # noqa: B027 - a process needs no second look
        """A request failed there: look at it at once."""


class OwnServer(Server):
    """A child process, on this machine or on a node of the cluster."""

    def __init__(
        self,
        config: Config,
        config_file: Path,
        processes: Processes,
        *,
        index: int,
        incarnation: int,
    ) -> None:
        self._describe = partial(
            engine_process,
            config,
            config_file,
            index=index,
            label=version_label(0, incarnation=incarnation),
        )
        self._processes = processes
        self._timeout_s = config.own_engine.start_timeout_s
        super().__init__(engine_name(index), "", client_of(config, "", incarnation))

    async def start(self) -> None:
        host, port = await self._processes.address(self.name)
        spec = self._describe(host=host, port=port)
        await self._processes.start(spec)
        self.url = spec.health_url.removesuffix("/health")
        await self.engine.move(self.url)

    async def ready(self) -> None:
        await self._processes.ready(self.name, timeout_s=self._timeout_s)

    async def ended(self) -> Exception:
        died = await self._processes.ended(self.name)
        assert died is not None  # an engine is never finite
        return died

    async def restart(self) -> None:
        await self._processes.end(self.name)
        await self.start()

    async def retire(self, why: str) -> None:
        log.warning("ending %s: %s", self.name, why)
        await self._processes.kill(self.name)

    async def release(self) -> None:
        await super().release()
        await self._processes.forget(self.name)


class AttachedServer(Server):
    """A vLLM server that somebody else started, and will start again."""

    def __init__(
        self, config: Config, url: str, *, index: int, model_dir: Path, incarnation: int
    ) -> None:
        assert isinstance(config.own_engine, VllmEngineConfig)
        self._config = config.own_engine
        self._interrupt: Interrupt = config.rollout.interrupt
        self._transport = config.weights.transport
        self._model_dir = model_dir
        self._look = asyncio.Event()
        self._untrusted = ""
        super().__init__(f"engine-{index}", url, client_of(config, url, incarnation))

    async def start(self) -> None:
        """It runs already."""

    async def ready(self) -> None:
        start = said = time.monotonic()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as http:
            while problem := await self._problem(http):
                now = time.monotonic()
                if now - start > self._config.start_timeout_s:
                    raise ProcessDied(
                        f"{self.name} was not ready within {self._config.start_timeout_s:g} s "
                        f"(engine.start_timeout_s): {problem}"
                    )
                if now - said > REPORT_EVERY_S:
                    said = now
                    log.info("waiting for %s: %s", self.name, problem)
                await asyncio.sleep(POLL_S)
        self._untrusted = ""
        self.engine.has_spans, self.seed = await check_server(
            self.url,
            self._config,
            model_dir=self._model_dir,
            transport=self._transport,
            timeout_s=self._config.start_timeout_s,
        )
        check_interrupt(self._interrupt, has_spans=self.engine.has_spans, where=self.url)

    async def ended(self) -> Exception:
        silent_s, asked = 0.0, time.monotonic()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(ASK_TIMEOUT_S)) as http:
            while not self._untrusted:
                problem = await self._problem(http)
                # What this process itself has slept through says nothing of the server.
                passed = min(time.monotonic() - asked, 2 * (ASK_EVERY_S + ASK_TIMEOUT_S))
                silent_s = silent_s + passed if problem else 0.0
                asked = time.monotonic()
                if not problem:
                    await self._notice_restart()
                elif silent_s > SILENCE_LIMIT_S:
                    return ProcessDied(f"{problem}, for {silent_s:.0f} s")
                self._look.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ASK_AGAIN_S if problem else ASK_EVERY_S):
                        await self._look.wait()
        return ProcessDied(f"{self.url}: {self._untrusted}")

    async def _notice_restart(self) -> None:
        """One that was started again between two looks serves its model as "default"."""
        if not (self.serves and self.engine.has_spans) or self._untrusted:
            return
        with contextlib.suppress(EngineError):  # the next look at its health says more
            if await self.engine.served_version() == UNKNOWN_VERSION:
                self._untrusted = "somebody has started it again"

    async def restart(self) -> None:
        """Whoever started it does that."""

    async def retire(self, why: str) -> None:
        self._untrusted = why
        self._look.set()

    def suspect(self) -> None:
        self._look.set()

    async def _problem(self, http: aiohttp.ClientSession) -> str:
        """Why it is not healthy; "" if it is."""
        try:
            async with http.get(f"{self.url}/health") as answer:
                return "" if answer.status == 200 else f"{self.url}/health says {answer.status}"
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"{self.url}/health: {str(error) or type(error).__name__}"


def make_servers(
    config: Config,
    config_file: Path,
    processes: Processes,
    *,
    model_dir: Path,
    incarnation: int = 0,
    first_index: int = 0,
) -> list[Server]:
    """The servers `config.engine` asks for, numbered from `first_index`; none is started yet."""
    engine = config.own_engine
    make = partial(
        make_server, config, config_file, processes, model_dir=model_dir, incarnation=incarnation
    )
    if isinstance(engine, VllmEngineConfig) and engine.urls:
        return [make(index=index, url=url) for index, url in enumerate(engine.urls)]
    return [make(index=first_index + index) for index in range(engine.num_servers)]


def make_server(
    config: Config,
    config_file: Path,
    processes: Processes,
    *,
    model_dir: Path,
    incarnation: int,
    index: int,
    url: str = "",
) -> Server:
    """Server `index`: the one at `url`, or else one of ours, which is not started yet."""
    if url:
        url = url.rstrip("/")
        return AttachedServer(
            config, url, index=index, model_dir=model_dir, incarnation=incarnation
        )
    return OwnServer(config, config_file, processes, index=index, incarnation=incarnation)


def client_of(config: Config, url: str, incarnation: int = 0) -> HttpEngine:
    """A client that knows what the kind of server can and cannot do."""
    engine = config.own_engine
    is_vllm = isinstance(engine, VllmEngineConfig)
    build = find_build(engine.python) if is_vllm and not engine.urls else None
    return HttpEngine(
        url,
        timeout_s=engine.request_timeout_s,
        control_timeout_s=config.weights.update_timeout_s,
        has_spans=build is None or build.has_spans,
        # vLLM's CPU build dies of a seed once a prefill is chunked or recomputed.
        send_seed=not is_vllm or (build is not None and not build.is_cpu),
        polls_staging=is_vllm and config.weights.transport in ("shm", "gloo"),
        incarnation=incarnation,
    )
