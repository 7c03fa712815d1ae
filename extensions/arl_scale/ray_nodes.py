"""The connection to a Ray cluster, and its nodes."""

# ray may not be in the environment that checks types.
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator

import ray

from agentgym_rl.core import ConfigError

from .demand import Node
from .keys import NodeKeys

LOOK_EVERY_S = 0.5


@contextlib.asynccontextmanager
async def connected(config: NodeKeys) -> AsyncIterator[list[Node]]:
    """Initialize Ray in this process while the context is open; yield the nodes of the cluster.

    Raises:
        ConfigError: there is no such cluster, or it has fewer than `config.nodes` nodes within
            `config.start_timeout_s`.
    """
    if "://" in config.address:
        raise ConfigError(
            f"cluster.address {config.address!r}: a run has to be on a node of the cluster, since "
            "engines and trainer connect to it and share its folder. From elsewhere: `ray job "
            "submit --address=URL -- arl train --cluster ray ...`, which brings the logs back"
        )
    with _silent_stdout():
        async with _connection(config):
            await _wait_nodes(config)
            yield _nodes()


@contextlib.asynccontextmanager
async def _connection(config: NodeKeys) -> AsyncIterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=config.address,
            runtime_env=config.runtime_env or None,
            log_to_driver=False,
            configure_logging=False,
        )
    except (ConnectionError, ValueError, TimeoutError) as error:
        raise ConfigError(
            f"no Ray cluster at cluster.address {config.address!r}: {error}. Start one on this "
            "machine: `ray start --head`, on others `ray start --address=HEAD:6379`"
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray's own would end this process at once
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _silent_stdout() -> Iterator[None]:
    """Redirect stdout to stderr while the context is open: Ray announces dead nodes and actors on
    stdout, amid the output of `--json`. Results are printed after the cluster is left."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


async def _wait_nodes(config: NodeKeys) -> None:
    deadline = time.monotonic() + config.start_timeout_s
    while (there := len(_nodes())) < config.nodes:
        if time.monotonic() > deadline:
            raise ConfigError(
                f"cluster.nodes {config.nodes}: Ray has {there} after "
                f"{config.start_timeout_s:g} s (cluster.start_timeout_s); see `ray status`"
            )
        await asyncio.sleep(LOOK_EVERY_S)


def _nodes() -> list[Node]:
    """Return the living nodes of the cluster to which Ray is connected."""
    return [
        Node(
            name=f"{node['NodeManagerAddress']} {node['NodeID'][:6]}",
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def own_address() -> str:
    """Return the address at which the other nodes reach this one."""
    return ray.util.get_node_ip_address()
