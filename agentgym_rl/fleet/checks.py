"""What the servers of a fleet have in common, what they may not have, and who of them hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Literal

from agentgym_rl.config import Config, EmbeddedEngineConfig, VllmEngineConfig
from agentgym_rl.core.engine import EngineInfo
from agentgym_rl.core.errors import ConfigError, EngineError, InfraError
from agentgym_rl.engines.router.router import Router

from .servers import Server


def make_router(config: Config, on_failure: Callable[[str, EngineError], None]) -> Router:
    """The router of the configured engines: the same in every process that asks them."""
    engine = config.own_engine
    return Router(
        interrupt=config.rollout.interrupt,
        salt=salt_of(config),
        wait_s=engine.start_timeout_s,
        on_failure=on_failure,
        whole_turns=isinstance(engine, EmbeddedEngineConfig) and engine.deterministic,
    )


def salt_of(config: Config) -> Literal["by_version", "none"]:
    """How the router salts prefix caches; engines without one ignore it."""
    engine = config.own_engine
    shared = isinstance(engine, VllmEngineConfig) and engine.prefix_cache == "shared"
    return "none" if shared else "by_version"


def check_seeds(servers: Iterable[Server]) -> None:
    """Servers of one seed sample the same tokens for the members of a group.

    Raises:
        ConfigError: two were started with the same one.
    """
    seen: dict[int, Server] = {}
    for server in servers:
        if server.seed is None:
            continue
        other = seen.setdefault(server.seed, server)
        if other is not server:
            raise ConfigError(
                f"the vLLM servers at {other.url} and {server.url} have the same seed: start "
                f"each with a --seed of its own (both have {server.seed}), so that the members "
                "of a group differ; or is it one server, named twice in engine.urls?"
            )


def agreed(infos: Mapping[str, EngineInfo]) -> EngineInfo:
    """What all servers have in common.

    Raises:
        ConfigError: they serve different models.
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
    """Refuse a server that cannot take the place of the `others`, whose common ground this is.

    Raises:
        ConfigError: it serves another model, or has a shorter context.
    """
    agreed({"those that serve": others, name: info})
    if info.max_model_len < others.max_model_len:
        raise ConfigError(
            f"{name} takes {info.max_model_len} tokens of context, the run's engines "
            f"{others.max_model_len}: start it with the same --max-model-len"
        )


async def hanging(
    silent_s: Callable[[], Mapping[str, float]], *, limit_s: float
) -> AsyncIterator[tuple[str, float]]:
    """For ever: servers that were asked and have sent no token for so long, and for how long."""
    pause_s = min(1.0, limit_s / 4)
    while True:
        slept = time.monotonic()
        await asyncio.sleep(pause_s)
        if time.monotonic() - slept > 2 * pause_s + 1.0:
            continue  # this process stood still, and what came meanwhile is not read yet
        for name, seconds in silent_s().items():
            if seconds > limit_s:
                yield name, seconds


async def wait_serving(config: Config, router: Router) -> None:
    """Wait until some engine serves.

    Raises:
        InfraError: none did within `engine.start_timeout_s`.
    """
    limit_s = config.own_engine.start_timeout_s
    try:
        await router.wait_serving(who="an episode", timeout_s=limit_s)
    except TimeoutError as error:
        raise InfraError(str(error)) from error
