"""The start of a run, from a program or by a command. A fork server makes the imports that engines,
ranks and rollout workers share."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from agentgym_rl.cluster import ForkServer
from agentgym_rl.cluster.processes import submitted
from agentgym_rl.config import Config, OwnEngineConfig, TrainerConfig, load_config, refuse_keys
from agentgym_rl.core import ArlError, extension_names, not_installed, raise_cause
from agentgym_rl.engines import kind_of
from agentgym_rl.trainer import rank_environment, rank_imports

from .parts import CALLBACKS, Forked, producer_kind

if TYPE_CHECKING:  # slow imports, during which the fork server does its own
    from agentgym_rl.report import Progress

    from .result import TrainResult

    Job = Callable[..., Coroutine[Any, Any, TrainResult]]


async def train(
    config: Config | Mapping[str, Any] | Path | str | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    resume: Path | str | None = None,
    progress: Progress | None = None,
    callbacks: object = (),
    **keys: Never,
) -> TrainResult:
    """Run a complete training job; return when it is finished and every process has ended.

    It runs in the event loop of the caller, such as a notebook's; a script writes
    `asyncio.run(train(config))`. Cancelling it ends the run and its processes. Signal handlers,
    logging and the garbage collector stay as they are: `arl train` sets its own.

    >>> import asyncio, tempfile
    >>> from agentgym_rl import train
    >>> small = {"steps": 1, "rollout.groups_per_batch": 2, "rollout.group_size": 2}
    >>> small |= {"trainer.num_minibatches": 1, "eval.num_tasks": 0, "logging.progress": "none"}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = asyncio.run(train(overrides={**small, "run": f"{folder}/doctest"}))
    >>> result.steps
    1

    Args:
        config: A `Config`, a TOML file, its content as nested mappings, or None for the defaults.
        overrides: Dotted keys on top, as on the command line: `{"rollout.max_staleness": 1}`.
        resume: The folder of a run to resume, whose configuration is then the default.
        progress: The receiver of the run's events; None: plain lines on stderr, unless
            logging.progress is "rich" or "none".
        callbacks: The functions and objects, or a single one, that are called at each step, episode
            and evaluation (docs/python.md).

    Raises:
        ConfigError: the run cannot work as configured; nothing has been started.
        ArlError: the run failed. If several of its parts did, this is the cause of the others.
    """

    def job() -> Job:
        from .train import play_and_train

        return play_and_train

    refuse_keys("train", keys)
    if resume is None:
        config = load_config(config, overrides)
    else:
        from .resume import resumed_config

        resume = Path(resume)
        config = resumed_config(resume, config, overrides or {})
    if callbacks and "callbacks" not in extension_names("live_parts"):
        raise not_installed("live_parts", "callbacks", "calls them")
    several = isinstance(callbacks, list | tuple)
    CALLBACKS.set(tuple(callbacks) if several else (callbacks,))
    return await launch(job, config, resume=resume, progress=progress)


async def launch(
    job: Callable[[], Job], config: Config, *, resume: Path | None, progress: Progress | None
) -> TrainResult:
    """Run the function that `job` imports; the fork server does its imports meanwhile."""
    if config.cluster.kind.submits:
        raise submitted(config.cluster)
    try:
        forked = producer_kind(config).forked(config)
        with fork_server(config.own_engine, config.trainer, forked) as server:
            run = job()
            from agentgym_rl.report import reporting_to

            resume = Path(os.path.abspath(resume)) if resume else None  # noqa: ASYNC240
            with reporting_to(progress, config.logging, total_steps=config.steps) as progress:
                return await run(config, progress, resume=resume, server=server)
    except (BaseExceptionGroup, ArlError) as error:
        raise_cause(error)


def fork_server(
    engine: OwnEngineConfig, trainer: TrainerConfig, producer: Forked
) -> AbstractContextManager[ForkServer | None]:
    """Return the fork server as a context; opened early, it imports while other parts start.
    `producer`: the processes of the run's producer of groups.

    Yields None if fewer than two processes can be forked: a single one is as fast without it.
    """
    of_engine, of_rank = kind_of(engine).fork_imports(engine), rank_imports(trainer)
    engines = engine.num_servers if of_engine else 0
    ranks = trainer.num_ranks if of_rank else 0
    if engines + ranks + producer.count < 2:
        return nullcontext()
    imports = [*of_rank, *of_engine, *producer.imports]
    return ForkServer(imports, environment=rank_environment(trainer))
