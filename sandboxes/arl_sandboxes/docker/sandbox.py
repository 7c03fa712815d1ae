"""The Docker sandbox: one container, for as long as the sandbox is open."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from agentgym_rl import SandboxLost
from agentgym_rl.gym import Capabilities, ExecResult, Image, Limits, SandboxStats
from arl_sandboxes.forward import address_of
from arl_sandboxes.runner_client import Client
from arl_sandboxes.runner_sandbox import RunnerSandbox
from arl_sandboxes.runner_words import RESET_S, RunnerError

from .container import Container


class DockerSandbox(RunnerSandbox):
    """A sandbox in a container, made by `DockerBackend.create`."""

    def __init__(
        self,
        container: Container,
        capabilities: Capabilities,
        *,
        stats: SandboxStats,
        on_close: Callable[[Container], Awaitable[None]],
        renewed: Callable[[Container, Image], Awaitable[Container]],
        image: Image | None = None,
    ) -> None:
        if image is not None:  # the files of its root are on the daemon's disk
            capabilities = replace(capabilities, disk=False)
        name = f"docker-{uuid.uuid4().hex[:12]}"
        super().__init__(name, container.limits, capabilities, stats=stats, image=image)
        self._renewed = renewed
        self._container = container
        self._on_close: Callable[[Container], Awaitable[None]] | None = on_close

    @property
    def client(self) -> Client:
        return self._container.client

    @property
    def container(self) -> str:
        """Return the container's name, for the daemon."""
        return self._container.id

    async def reset(self) -> None:
        async with self._busy:
            self.check_open()
            if self.image is not None:
                self._container = await self._renewed(self._container, self.image)
                return
            try:
                await self.client.request("reset", deadline_s=RESET_S)
            except RunnerError as error:  # then the remaining state is unknown
                self.client.link.drop(f"it could not be reset: {error}")
                raise SandboxLost(f"{self.id}: {self.client.dead}") from None

    @contextlib.asynccontextmanager
    async def forward(self, port: int, to: str) -> AsyncIterator[None]:
        address = address_of(port, to)
        self.check_open()
        async with self._container.ports.forwarded(port, address):
            yield

    async def close(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            await on_close(self._container)

    def check_open(self) -> None:
        if self._on_close is None:
            raise SandboxLost(f"{self.id} is closed")
        if self.client.dead:
            raise SandboxLost(f"{self.id}: {self.client.dead}")

    def conclude(self, reply: Mapping[str, Any], wall_ms: float) -> ExecResult:
        return replace(super().conclude(reply, wall_ms), wall_ms=wall_ms)

    def _limits(self, limits: Limits) -> dict[str, float]:
        names = ["wall_s", "cpu_s", "memory_mb", "file_mb", "open_files", "output_bytes"]
        if self._container.counts_processes:
            names.append("processes")
        if self.image is not None and limits.memory_mb == self.limits.memory_mb:
            # The container's bound suffices: programs of images are of any kind, and some (Node.js)
            # reserve address space that they never use.
            names.remove("memory_mb")
        return {name: getattr(limits, name) for name in names}
