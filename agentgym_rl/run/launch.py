"""The fork server of a run: its engines, ranks and rollout workers need the same imports."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from agentgym_rl.cluster.forking import ForkServer
from agentgym_rl.config import Config
from agentgym_rl.engines.launch import engine_imports
from agentgym_rl.trainer.launch import rank_environment, rank_imports
from agentgym_rl.workers.launch import worker_imports


def fork_server(config: Config) -> AbstractContextManager[ForkServer | None]:
    """Begun early, it imports while all else is made ready.

    None where fewer than two processes can be forked: one is as fast by itself.

    Raises:
        ConfigError: the configured engine is none that can be trained with.
    """
    engine, rank = engine_imports(config), rank_imports(config)
    engines = config.own_engine.num_servers if engine else 0
    ranks = config.trainer.num_ranks if rank else 0
    worker = worker_imports(config)
    if engines + ranks + config.rollout.workers < 2:
        return nullcontext()
    return ForkServer([*rank, *engine, *worker], environment=rank_environment(config))
