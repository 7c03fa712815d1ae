"""The construction of the rollout side: the configured environment and its services, engines, the
gateway in front of them, and a player on top."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from agentgym_rl.config import (
    AgentConfig,
    Config,
    EnvConfig,
    GatewayConfig,
    RolloutConfig,
    SandboxConfig,
)
from agentgym_rl.core import ConfigError, EngineInfo, Message, ToolSpec
from agentgym_rl.engines import Router
from agentgym_rl.gateway import AgentClients, ChatFormat, Gateway, SessionServer
from agentgym_rl.gateway.client import ASLEEP_S
from agentgym_rl.gym import Env, EnvSpec, Services, registry, running_services
from agentgym_rl.gym.wrappers import within
from agentgym_rl.models import model_folder, tokenizer_hash

from .episode import CLOSE_TIMEOUT_S, Deadlines, InputLimit, Player, at_once
from .players import player_kind

log = logging.getLogger(__name__)


class Engines(Protocol):
    """The engines that a gateway stands in front of: a `Fleet`, or a worker's view of one."""

    @property
    def router(self) -> Router: ...

    async def ready(self) -> EngineInfo: ...

    async def watch(self) -> None: ...

    async def wait_serving(self) -> None: ...


def env_spec(env: EnvConfig, rollout: RolloutConfig) -> EnvSpec:
    """Return the spec of the configured environment, with its options, limits and wrappers."""
    options = dict(env.options)
    if rollout.tool_timeout_s is not None:
        options["step_timeout_s"] = rollout.tool_timeout_s
    return registry.spec(env.id).with_options(**options)


async def turns_of(env: EnvConfig, agent: AgentConfig, rollout: RolloutConfig) -> int | None:
    """Return the maximum number of turns of an episode, the smaller of the environment's and the
    agent's `max_turns`; None: no limit."""
    spec = env_spec(env, rollout)
    limits = [(await specimen(spec)).max_turns, agent.options.get("max_turns")]
    return min((limit for limit in limits if isinstance(limit, int)), default=None)


async def specimen(spec: EnvSpec) -> Env:
    """Return a closed instance of an environment, which is never played: its construction checks
    the options, and its attributes show which services it needs."""
    env = spec.make()
    try:
        await within(CLOSE_TIMEOUT_S, env.close())
    except (Exception, SystemExit) as error:  # foreign code
        log.warning("env.close of %s, before any reset, failed: %r", spec.id, error)
    return env


@contextlib.asynccontextmanager
async def services(
    spec: EnvSpec, sandbox: SandboxConfig, verifier: Mapping[str, Any]
) -> AsyncGenerator[Services]:
    """Run the services of an environment while the context is open."""
    env = await specimen(spec)
    async with running_services(env, sandbox, verifier) as given:
        yield given


@contextlib.asynccontextmanager
async def policy_gateway(
    fleet: Engines, model_dir: Path, config: GatewayConfig, *, max_model_len: int
) -> AsyncGenerator[Gateway]:
    """Wait until the engines are ready, and yield a gateway in front of them, which does not serve
    yet; supervise the engines while the context is open."""
    chat = ChatFormat.load(model_dir, config)
    info = await fleet.ready()
    if info.tokenizer_hash not in ("", tokenizer_hash(model_dir)):  # "" from other projects
        raise ConfigError(
            f"engine and gateway disagree on the tokenizer or chat template of {model_dir}: "
            f"{info.tokenizer_hash} and {tokenizer_hash(model_dir)}"
        )
    gateway = Gateway(
        fleet.router,
        chat,
        config=config,
        model_name=info.model,
        max_model_len=min(info.max_model_len, max_model_len),
    )
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(fleet.watch(), name="watch engines")
        await fleet.wait_serving()  # attached servers first get this run's version 0
        yield gateway
        watch.cancel()


@contextlib.asynccontextmanager
async def serving_policy(
    config: Config,
    fleet: Engines,
    given: Services | None = None,
    *,
    opponents: Mapping[str, Player] = MappingProxyType({}),
) -> AsyncGenerator[Player]:
    """Serve a gateway on these engines, and yield a player of the configured episodes. The services
    are those `given`, or else started here. `opponents`: the players of models other than the
    policy."""
    model_dir = model_folder(config.model, config.env.id)
    max_model_len = config.own_engine.max_model_len
    spec = env_spec(config.env, config.rollout)
    running = services(spec, config.sandbox, config.verifier_options)
    patience = {"patience_s": ASLEEP_S} if config.cluster.shares_devices else {}
    async with (
        policy_gateway(fleet, model_dir, config.gateway, max_model_len=max_model_len) as gateway,
        contextlib.nullcontext(given) if given else running as given,
        gateway.serve() as base_url,
        AgentClients(base_url, **patience) as clients,
    ):
        yield make_player(
            spec,
            config.agent,
            config.rollout,
            gateway,
            clients,
            gateway.model_name,
            env_id=config.env.id,
            services=given,
            wait_ready=fleet.wait_serving,
            count_prompt=gateway.count_prompt,
            opponents=opponents,
        )


def make_player(
    spec: EnvSpec,
    agent: AgentConfig,
    rollout: RolloutConfig,
    gateway: SessionServer,
    clients: AgentClients,
    model_name: str,
    *,
    env_id: str,
    services: Services,
    wait_ready: Callable[[], Awaitable[None]] = at_once,
    count_prompt: Callable[[Sequence[Message], Sequence[ToolSpec]], int] | None = None,
    opponents: Mapping[str, Player] = MappingProxyType({}),
) -> Player:
    """Make the player of the environment of `spec`, whose configured id is `env_id`."""
    agent_spec = registry.spec(agent.id, kind="agent")
    longest = rollout.max_input_tokens
    player = Player(
        make_env=spec.maker(),
        make_agent=lambda: agent_spec.make(**agent.options),
        gateway=gateway,
        clients=clients,
        model_name=model_name,
        deadlines=Deadlines(
            episode_s=rollout.episode_timeout_s,
            idle_s=rollout.idle_timeout_s,
            turn_s=rollout.turn_timeout_s,
        ),
        services=services,
        env_id=env_id,
        wait_ready=wait_ready,
        input_limit=InputLimit(longest, count_prompt) if longest and count_prompt else None,
    )
    return player_kind(rollout, spec).player(player, rollout, opponents)
