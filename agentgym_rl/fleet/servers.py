"""The servers of a fleet: child processes, or attached servers that were already running; and
checks of their common properties and seeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from agentgym_rl.cluster import Processes, health_of
from agentgym_rl.cluster.health import ASK_AGAIN_S, ASK_EVERY_S, SILENCE_LIMIT_S
from agentgym_rl.core import (
    UNKNOWN_VERSION,
    ConfigError,
    EngineError,
    EngineInfo,
    InfraError,
    ProcessDied,
    version_label,
)
from agentgym_rl.engines import (
    EngineClient,
    EngineSetup,
    Router,
    check_server,
    engine_name,
    engine_process,
)

log = logging.getLogger(__name__)

REPORT_EVERY_S = 30.0


class Server(ABC):
    """An engine behind a URL, and the supervision of its life."""

    def __init__(self, name: str, url: str, engine: EngineClient) -> None:
        self.name = name
        self.url = url
        self.engine = engine
        self.restarts = 0
        self.first_life = 0
        """The number of starts of earlier servers with the same name."""
        self.serves = False
        """Whether the server has been put in service, with a version of this run."""
        self.seed: int | None = None
        """The server's sampling seed, if only the server itself knows it."""

    @property
    def life(self) -> str:
        """Return a name that differs for each start: "engine-1#2" after two restarts."""
        number = self.first_life + self.restarts
        return f"{self.name}#{number}" if number else self.name

    @abstractmethod
    async def start(self) -> None:
        """Start the server; `ready` waits for it."""

    @abstractmethod
    async def ready(self) -> None:
        """Wait until the server answers.

        Raises:
            ProcessDied: the server ended, or did not answer in time.
            ConfigError: the server answers, but does not match the configuration.
        """

    @abstractmethod
    async def ended(self) -> Exception:
        """Wait until the server is dead or silent; return an error with the reason."""

    @abstractmethod
    async def restart(self) -> None:
        """Start the server again after it ended."""

    @abstractmethod
    async def retire(self, why: str) -> None:
        """Give up a server that failed: end a child process, and let `ended` return."""

    async def release(self) -> None:
        """Remove the server from the run: end a child process, and free its resources."""
        await self.engine.close()

    def suspect(self) -> None:  # noqa: B027 - a process needs no second look
        """Check the server at once, because a request to it failed."""


class OwnServer(Server):
    """A child process, on this machine or on a node of the cluster."""

    def __init__(
        self,
        setup: EngineSetup,
        config_file: Path,
        processes: Processes,
        *,
        index: int,
        incarnation: int,
    ) -> None:
        self._describe = partial(
            engine_process,
            setup.engine,
            config_file,
            index=index,
            label=version_label(0, incarnation=incarnation),
        )
        self._processes = processes
        self._timeout_s = setup.engine.start_timeout_s
        super().__init__(engine_name(index), "", setup.client("", incarnation))

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
    """A server that was started, and will be restarted, from outside the run."""

    def __init__(
        self, setup: EngineSetup, url: str, *, index: int, model_dir: Path, incarnation: int
    ) -> None:
        self._client = partial(setup.client, url)
        self._setup = setup
        self._timeout_s = setup.engine.start_timeout_s
        self._model_dir = model_dir
        self._look = asyncio.Event()
        self._untrusted = ""
        super().__init__(f"engine-{index}", url, setup.client(url, incarnation))

    async def start(self) -> None:
        """Do nothing: the server runs already."""

    async def ready(self) -> None:
        start = reported = time.monotonic()
        async with health_of(
            f"{self.url}/v1/models"
        ) as health:  # its kind need not be that of engine.type
            while problem := await health.ask():
                now = time.monotonic()
                if now - start > self._timeout_s:
                    raise ProcessDied(
                        f"{self.name} was not ready within {self._timeout_s:g} s "
                        f"(engine.start_timeout_s): {problem}"
                    )
                if now - reported > REPORT_EVERY_S:
                    reported = now
                    log.info("waiting for %s: %s", self.name, problem)
                await asyncio.sleep(ASK_AGAIN_S)
        self._untrusted = ""
        checked = await check_server(
            self.url, self._setup, model_dir=self._model_dir, timeout_s=self._timeout_s
        )
        if checked.kind != self.engine.kind:
            await self.engine.close()
            self.engine = self._client(self.engine.incarnation, checked.kind)
        self.engine.has_spans, self.seed = checked.has_spans, checked.seed

    async def ended(self) -> Exception:
        async with health_of(self.url + self.engine.health_path) as health:
            while not self._untrusted:
                problem, silent_s = await health.ask(), health.silence.seconds
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
        """Detect a restart between two checks: a restarted server labels its weights "default"."""
        if not (self.serves and self.engine.has_spans) or self._untrusted:
            return
        with contextlib.suppress(EngineError):  # the next check of its health shows more
            if await self.engine.served_version() == UNKNOWN_VERSION:
                self._untrusted = "it was started again from outside"

    async def restart(self) -> None:
        """Do nothing: the owner of the server restarts it."""

    async def retire(self, why: str) -> None:
        self._untrusted = why
        self._look.set()

    def suspect(self) -> None:
        self._look.set()


def make_servers(
    setup: EngineSetup,
    config_file: Path,
    processes: Processes,
    *,
    model_dir: Path,
    incarnation: int = 0,
    first_index: int = 0,
) -> list[Server]:
    """Return the configured servers, not started yet, numbered from `first_index` (those at URLs:
    from 0)."""
    engine = setup.engine
    make = partial(
        make_server, setup, config_file, processes, model_dir=model_dir, incarnation=incarnation
    )
    if engine.attached:
        return [make(index=index, url=url) for index, url in enumerate(engine.attached)]
    return [make(index=first_index + index) for index in range(engine.num_servers)]


def make_server(
    setup: EngineSetup,
    config_file: Path,
    processes: Processes,
    *,
    model_dir: Path,
    incarnation: int,
    index: int,
    url: str = "",
) -> Server:
    """Return server `index`, not started yet: the one at `url`, or else a child process."""
    if url:
        url = url.rstrip("/")
        return AttachedServer(setup, url, index=index, model_dir=model_dir, incarnation=incarnation)
    return OwnServer(setup, config_file, processes, index=index, incarnation=incarnation)


def check_seeds(servers: Iterable[Server]) -> None:
    """Check that all seeds differ: servers with one seed sample the same tokens for the members
    of a group.

    Raises:
        ConfigError: two servers were started with the same seed.
    """
    seen: dict[int, Server] = {}
    for server in servers:
        if server.seed is None:
            continue
        other = seen.setdefault(server.seed, server)
        if other is not server:
            raise ConfigError(
                f"the servers at {other.url} and {server.url} have the same seed: start each with "
                f"a --seed (or --random-seed) of its own, not {server.seed} for both, so that the "
                "members of a group differ; or is it one server, named twice in engine.urls?"
            )


def agreed(infos: Mapping[str, EngineInfo]) -> EngineInfo:
    """Return the common properties of all servers.

    Raises:
        ConfigError: the servers serve different models.
    """
    first = next(iter(infos.values()))
    for name, info in infos.items():
        if (info.model, info.tokenizer_hash) != (first.model, first.tokenizer_hash):
            raise ConfigError(
                f"engines serve different models: {first.model}; {name}: {info.model}"
            )
    shortest = min(info.max_model_len for info in infos.values())
    return EngineInfo(first.model, shortest, first.version, first.tokenizer_hash)


def check_joins(name: str, info: EngineInfo, others: EngineInfo) -> None:
    """Check that a server can replace the others, whose common properties are `others`.

    Raises:
        ConfigError: the server has another model, or a shorter context length.
    """
    agreed({"those that serve": others, name: info})
    if info.max_model_len < others.max_model_len:
        raise ConfigError(
            f"{name} takes {info.max_model_len} tokens of context, the run's engines "
            f"{others.max_model_len}: start it with the same --max-model-len"
        )


async def wait_serving(router: Router, *, timeout_s: float) -> None:
    """Wait until some engine serves.

    Raises:
        InfraError: no engine served within `timeout_s`.
    """
    try:
        await router.wait_serving(who="an episode", timeout_s=timeout_s)
    except TimeoutError as error:
        raise InfraError(str(error)) from error
