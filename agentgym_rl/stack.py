"""The rollout side, built: engine process, gateway in front of it, a player on top."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from . import registry
from .cluster.local import LocalProcesses
from .config import Config
from .engine import version_label
from .engines.client import HttpEngine
from .engines.launch import engine_process
from .episode import Deadlines, Player
from .errors import ConfigError
from .gateway.chat import ChatFormat
from .gateway.client import AgentClients
from .gateway.server import Gateway
from .model import resolve_model, tokenizer_hash
from .rollout import accept_filter
from .task import Split, Task, TaskSource

SEED_LIMIT = 2**63
"""Task seeds are stored as SQLite integers."""


def check(config: Config) -> None:
    """Refuse what cannot work before anything is started.

    Raises:
        ConfigError: an unknown env, agent, filter or model, a model without chat template,
            tasks that cannot be recorded, or a port that is taken.
    """
    registry.spec(config.env.id, kind="env").make(**config.env.options)
    registry.make_agent(config.agent.id, **config.agent.options)
    accept_filter(config.rollout.should_accept)
    ChatFormat.load(resolve_model(config.model.path, revision=config.model.revision))
    splits: tuple[Split, ...] = ("train", "eval")
    for split in splits:
        _check_tasks(config, split)
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
        raise ConfigError(f"{config.env.id} has no {split} tasks") from error
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
    spec = registry.spec(config.env.id, kind="env")
    return spec.task_source(split, seed=seed, **config.env.options)


async def start_engine(config: Config, config_file: Path, processes: LocalProcesses) -> str:
    """Start an engine process that serves version 0; returns its URL (it is not ready yet)."""
    port = free_port()
    await processes.start(engine_process(config, config_file, port=port, label=version_label(0)))
    return f"http://127.0.0.1:{port}"


@contextlib.asynccontextmanager
async def serving_policy(
    config: Config, processes: LocalProcesses, url: str
) -> AsyncIterator[Player]:
    """Wait until the engine at `url` is ready and put the gateway in front of it."""
    model_dir = resolve_model(config.model.path, revision=config.model.revision)
    chat = ChatFormat.load(model_dir)
    await processes.ready("engine", timeout_s=config.engine.start_timeout_s)
    async with contextlib.AsyncExitStack() as stack:
        engine = HttpEngine(url, timeout_s=config.engine.request_timeout_s)
        stack.push_async_callback(engine.close)
        info = await engine.info()
        if info.tokenizer_hash != tokenizer_hash(model_dir):
            raise ConfigError(
                f"engine and gateway disagree on the tokenizer or chat template of {model_dir}: "
                f"{info.tokenizer_hash} and {tokenizer_hash(model_dir)}"
            )
        gateway = Gateway(
            engine,
            chat,
            config=config.gateway,
            model_name=info.model,
            max_model_len=info.max_model_len,
        )
        base_url = await stack.enter_async_context(gateway.serve())
        clients = await stack.enter_async_context(AgentClients(base_url))
        yield _player(config, gateway, clients, info.model)


def _player(config: Config, gateway: Gateway, clients: AgentClients, model_name: str) -> Player:
    env = registry.spec(config.env.id, kind="env")
    agent = registry.spec(config.agent.id, kind="agent")
    return Player(
        make_env=lambda: env.make(**config.env.options),
        make_agent=lambda: agent.make(**config.agent.options),
        gateway=gateway,
        clients=clients,
        model_name=model_name,
        deadlines=Deadlines(
            episode_s=config.rollout.episode_timeout_s,
            turn_s=config.rollout.turn_timeout_s,
            tool_s=config.rollout.tool_timeout_s,
        ),
    )


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
