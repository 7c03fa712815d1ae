"""The checks of a configuration before a run starts anything: model, engine, parts, tasks, port."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import cast

from agentgym_rl.config import (
    Config,
    GatewayConfig,
    OwnEngineConfig,
    SandboxConfig,
)
from agentgym_rl.core import (
    ConfigError,
    SandboxUnavailable,
    Split,
    Task,
    extension_names,
    is_function_path,
    load_extension,
    load_extensions,
    only_here,
    tensor_heads,
)
from agentgym_rl.engines import kind_of
from agentgym_rl.gateway import ChatFormat
from agentgym_rl.gym import EnvSpec, registry
from agentgym_rl.models import model_folder
from agentgym_rl.runtime.imports import check_findable

from .factory import env_spec, specimen
from .groups import GroupRewarder, accept_filter
from .players import player_kind
from .task_choice import draws_kind

Check = Callable[[Config, bool], Iterator[str]]
_PROBE_S = 60.0
TRIALS = "trials"
Trial = Callable[[Config, Split | None], AbstractAsyncContextManager[None]]
"""A context of a checked configuration and the split that is played first: it is entered before
anything starts, and open until the end. It raises a ConfigError for a run that would fail. The
split is None where the code is not to be tried, only watched: in a worker of a run, for example."""
PROMPT_CHECKS = "prompt_checks"
PromptCheck = Callable[[Config, Sequence[Split], Callable[[str], None]], Awaitable[None]]
"""A check of the first prompts of a configuration's splits before anything starts. It raises a
ConfigError for a run that would fail, and tells a function of its progress if it takes long."""
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
    check_machine(config, trains=trains)
    spec = await check_parts(config)
    check_policy(config, config.own_engine)
    if trains:
        await _check_tasks(spec, "train", seed=config.seed, env_id=config.env.id)


def check_machine(config: Config, *, trains: bool) -> None:
    """Refuse what an installed package finds missing here (the group `agentgym_rl.checks`), such as
    a GPU: its function of the configuration, and of whether the run trains, yields the reasons.

    Raises:
        ConfigError: something is missing.
    """
    for check_of in cast("dict[str, Check]", load_extensions("checks", of=object)).values():
        for why in check_of(config, trains):
            raise ConfigError(why)


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
            if why := only_here(path, "each trainer rank, a process of its own,"):
                raise ConfigError(f"{key}: {why}")
            check_findable(path, key)
    folder = model_folder(config.model, config.env.id)
    chat = ChatFormat.load(folder, config.gateway)
    if not engine.attached:
        tensor_heads(folder)
        # attached servers are checked when they answer
        interrupt, sleeps = config.rollout.interrupt, config.cluster.shares_devices
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
    """Refuse a sandbox that does not work on this machine; if the run is not `here` (a Slurm job),
    check only its options.

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


async def check_prompts(
    config: Config, splits: Sequence[Split], *, say: Callable[[str], None]
) -> None:
    """Run the checks of first prompts that installed packages register in
    `agentgym_rl.prompt_checks`. `say` gets progress messages if one takes long.

    Raises:
        ConfigError: a check refuses the prompts of a split.
    """
    for name in extension_names(PROMPT_CHECKS):
        check_of: PromptCheck = load_extension(PROMPT_CHECKS, name)
        await check_of(config, splits, say)


@asynccontextmanager
async def tried(config: Config, split: Split | None) -> AsyncGenerator[None]:
    """Open the trials that installed packages register in `agentgym_rl.trials`."""
    async with AsyncExitStack() as stack:
        for name in extension_names(TRIALS):
            trial: Trial = load_extension(TRIALS, name)
            await stack.enter_async_context(trial(config, split))
        yield


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
