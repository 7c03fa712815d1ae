"""The E2B sandbox: one machine, and the runner in it, for as long as the sandbox is open."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from agentgym_rl import SandboxError, SandboxLost
from agentgym_rl.gym import Capabilities, Image, Limits, SandboxStats
from arl_sandboxes.forward import address_of
from arl_sandboxes.ports import Ports
from arl_sandboxes.runner_client import Client
from arl_sandboxes.runner_sandbox import RunnerSandbox
from arl_sandboxes.runner_words import RESET_S, RunnerError

if TYPE_CHECKING:
    from .machine import Machine

_FIELDS = ("wall_s", "cpu_s", "memory_mb", "processes", "file_mb", "open_files", "output_bytes")


class E2BSandbox(RunnerSandbox):
    """A sandbox in a machine, made by `E2BBackend.create`."""

    def __init__(
        self,
        machine: Machine,
        limits: Limits,
        capabilities: Capabilities,
        *,
        stats: SandboxStats,
        on_close: Callable[[], Awaitable[None]],
        image: Image | None = None,
    ) -> None:
        super().__init__(f"e2b-{machine.id}", limits, capabilities, stats=stats, image=image)
        self._machine = machine
        self._connect()
        self._on_close: Callable[[], Awaitable[None]] | None = on_close

    def _connect(self) -> None:
        """Connect to the machine's runner."""
        self._client = Client(self._machine)
        self._ports = Ports(self._client)

    @property
    def client(self) -> Client:
        return self._client

    async def reset(self) -> None:
        async with self._busy:
            self.check_open()
            try:
                await self._client.request("reset", deadline_s=RESET_S)
                if self.image is not None:
                    await self._renew()
            except (RunnerError, SandboxError) as error:  # then the remaining state is unknown
                self._machine.drop(f"it could not be reset: {error}", kill_runner=True)
                raise SandboxLost(f"{self.id}: {self._machine.dead}") from None

    async def _renew(self) -> None:
        """Continue with another runner in the same machine; its files are those of the image."""
        config = self._machine.config
        assert config is not None
        self._client.end("its sandbox was reset")
        await self._machine.start_runner(config)
        self._connect()

    @contextlib.asynccontextmanager
    async def forward(self, port: int, to: str) -> AsyncIterator[None]:
        address = address_of(port, to)
        self.check_open()
        if self.image is None:
            raise SandboxError(
                f"{self.id} has no loopback device, which sandboxes with images have: "
                "create it from an image"
            )
        async with self._ports.forwarded(port, address):
            yield

    async def close(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            await on_close()

    def check_open(self) -> None:
        if self._on_close is None:
            raise SandboxLost(f"{self.id} is closed")
        if self._machine.dead:
            raise SandboxLost(f"{self.id}: {self._machine.dead}")

    def _limits(self, limits: Limits) -> dict[str, float]:
        found: dict[str, float] = {name: getattr(limits, name) for name in _FIELDS}
        if self.image is not None:  # the kernel does not count the processes of root
            del found["processes"]
        return found
