"""E2B's control plane, for one account: make, list, renew and kill machines."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from e2b import AsyncSandbox, SandboxQuery
from e2b.exceptions import NotFoundException, SandboxException

from agentgym_rl import SandboxError, SandboxUnavailable

from .calls import deadline

MARK = "agentgym-rl"
"""The metadata key of our machines; its value names the backend that made the machine."""
_OUR_FAULT = (400, 403, 404)


@dataclass(frozen=True)
class Account:
    """The key, the properties of requested machines, and the addresses of E2B."""

    api_key: str
    template: str
    internet: bool
    lifetime_s: int
    call_timeout_s: float
    retries: int
    api_url: str = ""
    sandbox_url: str = ""
    owner: str = field(default_factory=lambda: uuid.uuid4().hex)

    async def create(self) -> AsyncSandbox:
        """Create a machine that ends by itself after `lifetime_s`, unless it is renewed.

        Raises:
            SandboxUnavailable: the key or the request is not accepted.
            SandboxError: E2B made no machine (after `retries`), or did not answer in time.
        """
        async with deadline("new sandbox", self.call_timeout_s, otherwise=SandboxError):
            try:
                return await AsyncSandbox.create(
                    template=self.template,
                    timeout=self.lifetime_s,
                    metadata={MARK: self.owner},
                    allow_internet_access=self.internet,
                    # With this key a retry finds the machine that the first try may have made.
                    idempotency_key=uuid.uuid4().hex,
                    **self._options(),
                )
            except SandboxException as error:
                if error.status_code in _OUR_FAULT:
                    raise SandboxUnavailable(
                        f"E2B makes no sandbox of template {self.template!r}: {error}"
                    ) from error
                raise

    async def mine(self) -> list[str]:
        """Return the ids of the machines of `owner` that E2B lists.

        Raises:
            SandboxError: E2B does not answer.
        """
        found: list[str] = []
        async with deadline("list sandboxes", self.call_timeout_s, otherwise=SandboxError):
            query = SandboxQuery(metadata={MARK: self.owner})
            pages = AsyncSandbox.list(query=query, **self._options())
            while pages.has_next:
                found += [info.sandbox_id for info in await pages.next_items()]
        return found

    async def renew(self, id: str) -> None:
        """Extend the life of a machine to `lifetime_s` from now.

        Raises:
            SandboxLost: there is no such machine, or E2B does not answer.
        """
        async with deadline(f"renew {id}", self.call_timeout_s):
            await AsyncSandbox.set_timeout(id, self.lifetime_s, **self._options())  # type: ignore[misc]

    async def kill(self, id: str, *, timeout_s: float) -> None:
        """Kill a machine; one that is gone already is no error.

        Raises:
            SandboxError: E2B does not confirm it.
        """
        async with deadline(f"kill {id}", timeout_s, otherwise=SandboxError):
            try:
                await AsyncSandbox.kill(id, **self._options())  # type: ignore[misc]
            except NotFoundException:
                return

    def _options(self) -> dict[str, Any]:
        options = {
            "api_key": self.api_key,
            "retries": self.retries,
            "request_timeout": self.call_timeout_s,
            "debug": False,  # E2B_DEBUG would skip `create` and `kill`
            "api_url": self.api_url or None,
            "sandbox_url": self.sandbox_url or None,
        }
        return {name: value for name, value in options.items() if value is not None}
