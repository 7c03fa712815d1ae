"""The daemon the docker tests use: that of DOCKER_HOST. `make test-docker` asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import docker
import pytest
from arl_sandboxes.docker import DockerBackend, owner

from tests.exhaustive import WITH_DOCKER

if not WITH_DOCKER:
    pytest.skip("ARL_REQUIRE has no docker: make test-docker", allow_module_level=True)

T = TypeVar("T")
TIMEOUT_S = 90


def require_daemon() -> None:
    """Fail, with the reason, where none works."""
    report = asyncio.run(DockerBackend().probe())
    if not report.ok:
        pytest.fail(f"no docker here:\n{report.complaint()}")


def play(scenario: Callable[[DockerBackend], Awaitable[T]], **options: Any) -> T:
    """The scenario with a backend that is open."""

    options = {"containers": 3, "warm": 0} | options

    async def run() -> T:
        async with (
            asyncio.timeout(TIMEOUT_S),
            DockerBackend(**options) as backend,
        ):
            return await scenario(backend)

    return asyncio.run(run())


class Client:
    """The daemon as an administrator sees it."""

    def __init__(self) -> None:
        self.api = docker.from_env().api

    def mine(self) -> list[dict[str, Any]]:
        """Containers this process made, those that do not run included."""
        wanted = {"label": [f"{name}={text}" for name, text in owner.labels("").items() if text]}
        return self.api.containers(all=True, filters=wanted)

    def only(self) -> dict[str, Any]:
        """Everything about the one there is."""
        (found,) = self.mine()
        return self.api.inspect_container(found["Id"])
