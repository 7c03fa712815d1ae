"""The construction of the rollout side: engines, the gateway in front of them, a player on top."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, cast

from agentgym_rl.config import (
    AgentConfig,
    Config,
    EnvConfig,
    GatewayConfig,
    OwnEngineConfig,
    RolloutConfig,
    SandboxConfig,
    VerifierConfig,
)
from agentgym_rl.core.chat import Message, ToolSpec
from agentgym_rl.core.engine import EngineInfo
from agentgym_rl.core.errors import ConfigError, SandboxUnavailable
from agentgym_rl.core.extensions import is_function_path
from agentgym_rl.core.model_folder import tensor_heads
from agentgym_rl.core.task import Split, Task
from agentgym_rl.engines.kind import kind_of
from agentgym_rl.engines.router.router import Router
from agentgym_rl.gateway.client import ASLEEP_S, AgentClients
from agentgym_rl.gateway.server.gateway import Gateway, SessionServer
from agentgym_rl.gateway.template.chat_format import ChatFormat
from agentgym_rl.gym import registry
from agentgym_rl.gym.env import Env
from agentgym_rl.gym.services import Services, running_services
from agentgym_rl.gym.specs import EnvSpec
from agentgym_rl.gym.wrappers import within
from agentgym_rl.models.resolve import model_folder, tokenizer_hash
from agentgym_rl.runtime.imports import check_eight_bits, check_findable

from .draws import draws_kind
from .episode import CLOSE_TIMEOUT_S, Deadlines, InputLimit, Player, at_once
from .groups import GroupRewarder, accept_filter
from .players import player_kind

log = logging.getLogger(__name__)


class Engines(Protocol):
    """The engines that a gateway stands in front of: a `Fleet`, or a worker's view of one."""

    @property
    def router(self) -> Router: ...

    async def ready(self) -> EngineInfo: ...

    async def watch(self) -> None: ...

    async def wait_serving(self) -> None: ...


_PROBE_S = 60.0
SEED_LIMIT = 2**63
"""The limit of task seeds, which are stored as SQLite integers."""


async def check(config: Config, *, trains: bool = True) -> None:
    """Refuse, before anything is started, a configuration that cannot work with the run's own
    engines. A run that only evaluates needs no training tasks.

    Raises:
        ConfigError: an engine of another provider, an unknown env, agent, filter or model, a model
            without chat template, no usable server of the engine, an unknown sandbox backend if one
            is needed, tasks that cannot be recorded, or a port that is taken.
    """
    spec = await check_parts(config)
    check_policy(config, config.own_engine)
    if trains:
        await _check_tasks(spec, "train", seed=config.seed, env_id=config.env.id)


def check_policy(config: Config, engine: OwnEngineConfig) -> ChatFormat:
    """Refuse an engine, model or filter that cannot work; return the model's chat format.

    Raises:
        ConfigError: see `check`.
    """
    accept_filter(config.rollout.should_accept)
    if (kind := draws_kind(config.rollout)) is not None:
        kind.check(config.rollout)
    GroupRewarder(config.rollout)
    own = {
        "algo.loss": config.algo.loss,
        "algo.advantage": config.algo.advantage or "",
        "trainer.optimizer": config.trainer.optimizer,
    }
    for key, path in own.items():
        if is_function_path(path):  # trainer ranks, which have torch, import it
            check_findable(path, key)
    if config.trainer.optimizer == "adamw8bit":
        check_eight_bits()
    folder = model_folder(config.model, config.env.id)
    chat = ChatFormat.load(folder, config.gateway)
    if not engine.attached:
        tensor_heads(folder)
        # attached servers are checked when they answer
        interrupt, sleeps = config.rollout.interrupt, config.cluster.colocated
        kind_of(engine).check_build(engine, interrupt=interrupt, sleeps=sleeps)
    return chat


async def check_parts(config: Config) -> EnvSpec:
    """Check the parts that do not depend on the model: env, sandbox, agent, held-out tasks, port.
    Return the spec of the environment.

    Raises:
        ConfigError: see `check`.
    """
    if config.sandbox.id != SandboxConfig().id:  # a wrong name is refused even if none is needed
        registry.spec(config.sandbox.id, kind="sandbox")
    spec = env_spec(config.env, config.rollout)
    env = await specimen(spec)
    player_kind(config.rollout, spec).check(config.rollout, spec, env)
    if env.needs_sandboxes:
        await _check_sandbox(config.sandbox, config.env.id, here=not config.cluster.kind.submits)
    registry.make_agent(config.agent.id, **config.agent.options)
    if config.eval.num_tasks:
        await _check_tasks(spec, "eval", seed=config.seed, env_id=config.env.id)
    check_port(config.gateway)
    return spec


async def _check_sandbox(sandbox: SandboxConfig, env_id: str, *, here: bool) -> None:
    """Refuse a sandbox that does not work on this machine; if the run is not `here`, as that of a
    Slurm job, check only its options.

    Raises:
        ConfigError: the backend is unknown, or does not take its options.
        SandboxUnavailable: the backend does not work on this machine.
    """
    id = sandbox.id
    backend = registry.make_sandbox(id, **sandbox.options)
    if not here:
        return
    try:
        async with asyncio.timeout(_PROBE_S):
            report = await backend.probe()
    except TimeoutError as error:
        raise SandboxUnavailable(
            f"sandbox.id {id!r}: its probe did not end within {_PROBE_S:.0f} s; see "
            f"`arl doctor sandbox --sandbox={id}`"
        ) from error
    if not report.ok:
        raise SandboxUnavailable(
            f"{env_id} runs programs in the sandbox {id!r}, which does not work here:\n"
            f"{report.complaint()}\nSee `arl doctor sandbox --sandbox={id}`"
        )


def check_port(gateway: GatewayConfig) -> None:
    """Refuse a port of the gateway that is taken.

    Raises:
        ConfigError: the port is taken.
    """
    if gateway.port:
        try:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((gateway.host, gateway.port))
        except OSError as error:
            raise ConfigError(
                f"gateway.port {gateway.port} on {gateway.host}: {error}; 0 picks a free one"
            ) from error


async def _check_tasks(spec: EnvSpec, split: Split, *, seed: int, env_id: str) -> None:
    try:
        task = cast("object", (await spec.read_tasks(split, seed=seed))[0])  # foreign code
    except IndexError as error:
        hint = "; --eval.num_tasks=0 evaluates on none" if split == "eval" else ""
        raise ConfigError(f"{env_id} has no {split} tasks{hint}") from error
    if not isinstance(task, Task):
        raise ConfigError(f"{env_id}: a task source must give Task objects, got {task!r}")
    try:
        json.dumps(dict(task.data))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{env_id}: task {task.id}: data must be JSON: {error}") from error
    number = cast("object", task.seed)
    if not (isinstance(number, int) and 0 <= number < SEED_LIMIT):
        raise ConfigError(f"{env_id}: task {task.id}: seed {number!r} is not in [0, 2^63)")


def env_spec(env: EnvConfig, rollout: RolloutConfig) -> EnvSpec:
    """Return the spec of the configured environment, with its options, limits and wrappers."""
    options = dict(env.options)
    if rollout.tool_timeout_s is not None:
        options["step_timeout_s"] = rollout.tool_timeout_s
    return registry.spec(env.id).with_options(**options)


async def turns_of(env: EnvConfig, agent: AgentConfig, rollout: RolloutConfig) -> int | None:
    """Return the most replies of an episode, as environment and agent name them; None: no limit."""
    spec = env_spec(env, rollout)
    limits = [(await specimen(spec)).max_turns, agent.options.get("max_turns")]
    return min((limit for limit in limits if isinstance(limit, int)), default=None)


async def specimen(spec: EnvSpec) -> Env:
    """Return a closed instance of an environment, which is never played: making it checks the
    options, and its attributes tell which services it needs."""
    env = spec.make()
    try:
        await within(CLOSE_TIMEOUT_S, env.close())
    except (Exception, SystemExit) as error:  # foreign code
        log.warning("env.close of %s, before any reset, failed: %r", spec.id, error)
    return env


@contextlib.asynccontextmanager
async def services(
    spec: EnvSpec, sandbox: SandboxConfig, verifier: VerifierConfig
) -> AsyncGenerator[Services]:
    """Run the services of an environment while the context is open."""
    env = await specimen(spec)
    async with running_services(env, sandbox, verifier) as given:
        yield given


@contextlib.asynccontextmanager
async def policy_gateway(
    fleet: Engines, model_dir: Path, config: GatewayConfig, *, max_model_len: int
) -> AsyncGenerator[Gateway]:
    """Wait until the engines are ready, yield a gateway in front of them, which does not serve yet,
    and watch over the engines meanwhile."""
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
    are those `given`, or else started here. `opponents`: the players of models beside the
    policy."""
    model_dir = model_folder(config.model, config.env.id)
    max_model_len = config.own_engine.max_model_len
    spec = env_spec(config.env, config.rollout)
    running = services(spec, config.sandbox, config.verifier)
    patience = {"patience_s": ASLEEP_S} if config.cluster.colocated else {}
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
