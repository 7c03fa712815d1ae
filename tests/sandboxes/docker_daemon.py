"""The daemon the docker tests use: that of DOCKER_HOST, or they are skipped."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import docker
import pytest
from arl_sandboxes.docker import DockerBackend, owner

T = TypeVar("T")
TIMEOUT_S = 90


def require_daemon() -> None:
    """Skip, with the reason, where none works; fail where ARL_REQUIRE names docker."""
    report = asyncio.run(DockerBackend().probe())
    if not report.ok:
        required = "docker" in os.environ.get("ARL_REQUIRE", "").split(",")
        (pytest.fail if required else pytest.skip)(f"no docker here:\n{report.complaint()}")


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
