"""The rollout side, built: engine process, gateway in front of it, a player on top."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from . import registry
from .config import Config, VllmEngineConfig
from .engines.vllm.build import check_interrupt, find_build
from .env import Message, ToolSpec
from .episode import Deadlines, InputLimit, Player, at_once
from .errors import ConfigError
from .fleet import Fleet
from .gateway.chat import ChatFormat
from .gateway.client import AgentClients
from .gateway.server import Gateway, SessionServer
from .model import model_folder, tokenizer_hash
from .rollout import accept_filter
from .sandbox import SandboxBackend
from .specs import EnvSpec
from .task import Split, Task, TaskSource
from .verifier import VerifierPool

SEED_LIMIT = 2**63
"""Task seeds are stored as SQLite integers."""


def check(config: Config) -> None:
    """Refuse what cannot work with an engine of our own before anything is started.

    Raises:
        ConfigError: an engine that is not ours, an unknown env, agent, filter or model, a model
            without chat template, no usable vLLM, an unknown sandbox backend where one is needed,
            tasks that cannot be recorded, or a port that is taken.
    """
    engine = config.own_engine
    check_parts(config)
    accept_filter(config.rollout.should_accept)
    ChatFormat.load(model_folder(config))
    if isinstance(engine, VllmEngineConfig) and not engine.urls:
        # servers that run already are checked when they answer
        build = find_build(engine.python)
        check_interrupt(config.rollout.interrupt, has_spans=build.has_spans, where=build.python)
    _check_tasks(config, "train")


def check_parts(config: Config) -> None:
    """What is checked whoever the model is: env, sandboxes, agent, held-out tasks and port.

    Raises:
        ConfigError: see `check`.
    """
    env_spec(config).make()
    _sandboxes(config)
    registry.make_agent(config.agent.id, **config.agent.options)
    if config.eval.num_tasks:
        _check_tasks(config, "eval")
    if config.gateway.port:
        try:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((config.gateway.host, config.gateway.port))
        except OSError as error:
            raise ConfigError(
                f"gateway.port {config.gateway.port} on {config.gateway.host}: {error}; "
                "0 picks a free one"
            ) from error


def _check_tasks(config: Config, split: Split) -> None:
    try:
        task = task_source(config, split, seed=config.seed)[0]
    except IndexError as error:
        hint = "; --eval.num_tasks=0 evaluates on none" if split == "eval" else ""
        raise ConfigError(f"{config.env.id} has no {split} tasks{hint}") from error
    if not isinstance(task, Task):
        raise ConfigError(f"{config.env.id}: a task source must give Task objects, got {task!r}")
    try:
        json.dumps(dict(task.data))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{config.env.id}: task {task.id}: data must be JSON: {error}") from error
    if not (isinstance(task.seed, int) and 0 <= task.seed < SEED_LIMIT):
        raise ConfigError(
            f"{config.env.id}: task {task.id}: seed {task.seed!r} is not in [0, 2^63)"
        )


def task_source(config: Config, split: Split, *, seed: int) -> TaskSource:
    """The tasks of the configured environment's `split`."""
    return env_spec(config).task_source(split, seed=seed)


def env_spec(config: Config) -> EnvSpec:
    """The configured environment, with its options, limits and wrappers."""
    options = dict(config.env.options)
    if config.rollout.tool_timeout_s is not None:
        options["step_timeout_s"] = config.rollout.tool_timeout_s
    return registry.spec(config.env.id).with_options(**options)


def _sandboxes(config: Config) -> SandboxBackend | None:
    """The configured backend, not started yet, if the environment needs one."""
    if not env_spec(config).make().needs_sandboxes:
        return None
    return registry.make_sandbox(config.sandbox.id, **config.sandbox.options)


@contextlib.asynccontextmanager
async def running_sandboxes(config: Config) -> AsyncIterator[SandboxBackend | None]:
    """The sandbox backend, started, if the environment needs one.

    Raises:
        SandboxUnavailable: it cannot work here.
    """
    backend = _sandboxes(config)
    if backend is None:
        yield None
        return
    async with backend:
        yield backend


@contextlib.asynccontextmanager
async def running_verifier(config: Config) -> AsyncIterator[VerifierPool | None]:
    """The verifier pool, started, if the environment uses it.

    Raises:
        VerifierError: it cannot work here.
    """
    if not env_spec(config).make().uses_verifier:
        yield None
        return
    options = config.verifier
    async with VerifierPool(
        options.num_workers, timeout_s=options.timeout_s, memory_mb=options.memory_mb
    ) as pool:
        yield pool


@contextlib.asynccontextmanager
async def serving_policy(config: Config, fleet: Fleet) -> AsyncIterator[Player]:
    """Wait until the engines are ready, put the gateway in front of them, and watch over both."""
    model_dir = model_folder(config)
    chat = ChatFormat.load(model_dir)
    info = await fleet.ready()
    if info.tokenizer_hash not in ("", tokenizer_hash(model_dir)):  # vLLM's has no such thing
        raise ConfigError(
            f"engine and gateway disagree on the tokenizer or chat template of {model_dir}: "
            f"{info.tokenizer_hash} and {tokenizer_hash(model_dir)}"
        )
    gateway = Gateway(
        fleet.router,
        chat,
        config=config.gateway,
        model_name=info.model,
        max_model_len=min(info.max_model_len, config.own_engine.max_model_len),
    )
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(fleet.watch(), name="watch engines")
        await fleet.wait_serving()  # servers that ran already first get this run's version 0
        async with (
            running_sandboxes(config) as sandboxes,
            running_verifier(config) as verifier,
            gateway.serve() as base_url,
            AgentClients(base_url) as clients,
        ):
            yield make_player(
                config,
                gateway,
                clients,
                info.model,
                sandboxes=sandboxes,
                verifier=verifier,
                wait_ready=fleet.wait_serving,
                count_prompt=gateway.count_prompt,
            )
        watch.cancel()


def make_player(
    config: Config,
    gateway: SessionServer,
    clients: AgentClients,
    model_name: str,
    *,
    sandboxes: SandboxBackend | None,
    verifier: VerifierPool | None,
    wait_ready: Callable[[], Awaitable[None]] = at_once,
    count_prompt: Callable[[Sequence[Message], Sequence[ToolSpec]], int] | None = None,
) -> Player:
    """The player of the configured environment and agent."""
    env = env_spec(config)
    agent = registry.spec(config.agent.id, kind="agent")
    longest = config.rollout.max_input_tokens
    return Player(
        make_env=env.maker(),
        make_agent=lambda: agent.make(**config.agent.options),
        gateway=gateway,
        clients=clients,
        model_name=model_name,
        deadlines=Deadlines(
            episode_s=config.rollout.episode_timeout_s,
            turn_s=config.rollout.turn_timeout_s,
        ),
        sandboxes=sandboxes,
        env_id=config.env.id,
        verifier=verifier,
        wait_ready=wait_ready,
        input_limit=InputLimit(longest, count_prompt) if longest and count_prompt else None,
    )
