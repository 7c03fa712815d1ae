"""E2B's control plane, for one account: make, list, renew and kill machines; build templates."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from e2b import AsyncSandbox, AsyncTemplate, BuildInfo, SandboxQuery
from e2b.exceptions import NotFoundException, SandboxException
from e2b.template.main import TemplateBuilder
from e2b.template.types import TemplateBuildStatusResponse

from agentgym_rl import SandboxError, SandboxUnavailable

from .calls import deadline

MARK = "agentgym-rl"
"""The metadata key of our machines; its value names the backend that made the machine."""
_OUR_FAULT = (400, 403, 404)


@dataclass(frozen=True)
class Account:
    """The key, the properties of requested machines, and the addresses of E2B."""

    api_key: str
    internet: bool
    lifetime_s: int
    call_timeout_s: float
    retries: int
    api_url: str = ""
    sandbox_url: str = ""
    owner: str = field(default_factory=lambda: uuid.uuid4().hex)

    async def create(self, template: str) -> AsyncSandbox:
        """Create a machine of a template. It ends after `lifetime_s`, unless it is renewed.

        Raises:
            SandboxUnavailable: the key or the request is not accepted.
            SandboxError: E2B made no machine (after `retries`), or did not answer in time.
        """
        async with deadline("new sandbox", self.call_timeout_s, otherwise=SandboxError):
            try:
                return await AsyncSandbox.create(
                    template=template,
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
                        f"E2B makes no sandbox of template {template!r}: {error}"
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

    # ------------------------------------------------------------------ templates
    async def has_template(self, name: str) -> bool:
        """Return True if there is a template of that name, built or not.

        Raises:
            SandboxError: E2B does not answer.
        """
        async with deadline(f"look for {name}", self.call_timeout_s, otherwise=SandboxError):
            return await AsyncTemplate.exists(name, **self._options())

    async def build(self, template: TemplateBuilder, name: str, *, timeout_s: float) -> BuildInfo:
        """Upload what a template needs, and have its build begin.

        Raises:
            SandboxError: E2B did not begin.
        """
        async with deadline(f"build {name}", timeout_s, otherwise=SandboxError):
            options: dict[str, Any] = {**self._options(), "request_timeout": timeout_s}
            return await AsyncTemplate.build_in_background(template, name, **options)

    async def build_status(self, build: BuildInfo, *, num_seen: int) -> TemplateBuildStatusResponse:
        """Return the state of a build, with the lines of its log after the first `num_seen`.

        Raises:
            SandboxError: E2B does not answer.
        """
        what = f"status of {build.name}"
        async with deadline(what, self.call_timeout_s, otherwise=SandboxError):
            return await AsyncTemplate.get_build_status(
                build, logs_offset=num_seen, **self._options()
            )

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
