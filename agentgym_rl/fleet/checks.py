"""The checks of a fleet's servers: common properties, conflicting seeds, and service in time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentgym_rl.config import Config
from agentgym_rl.core.engine import EngineInfo
from agentgym_rl.core.errors import ConfigError, InfraError
from agentgym_rl.engines.router.router import Router

from .servers import Server


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
                f"the vLLM servers at {other.url} and {server.url} have the same seed: start "
                f"each with a --seed of its own (both have {server.seed}), so that the members "
                "of a group differ; or is it one server, named twice in engine.urls?"
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
    """Refuse a server that cannot replace the others, whose common properties are `others`.

    Raises:
        ConfigError: the server has another model, or a shorter context.
    """
    agreed({"those that serve": others, name: info})
    if info.max_model_len < others.max_model_len:
        raise ConfigError(
            f"{name} takes {info.max_model_len} tokens of context, the run's engines "
            f"{others.max_model_len}: start it with the same --max-model-len"
        )


async def wait_serving(config: Config, router: Router) -> None:
    """Wait until some engine serves.

    Raises:
        InfraError: no engine served within `engine.start_timeout_s`.
    """
    limit_s = config.own_engine.start_timeout_s
    try:
        await router.wait_serving(who="an episode", timeout_s=limit_s)
    except TimeoutError as error:
        raise InfraError(str(error)) from error
