"""The upstream for an OpenAI-compatible URL served elsewhere, through the OpenAI SDK."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Self

from agentgym_rl.config import OpenAIEngineConfig

from .upstream import Upstream

if TYPE_CHECKING:  # the SDK takes half a second to import
    from openai import AsyncOpenAI


class OpenAIUpstream(Upstream):
    """A client of the endpoint at `config.base_url`."""

    config: OpenAIEngineConfig
    _client: AsyncOpenAI | None = None

    async def __aenter__(self) -> Self:
        import openai

        self._client = openai.AsyncOpenAI(
            base_url=self.config.base_url,
            api_key=self._api_key or "none",  # the SDK requires a key
            max_retries=self.config.max_retries,
            timeout=self._timeout_s,
            http_client=openai.DefaultAioHttpClient(),
        )
        return self

    async def _close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def whole(self, request: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
        with self._explained():
            response = await self._completions.with_raw_response.create(**_arguments(request))
            data = response.content
        return data, self._completion(data)

    async def events(self, request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        with self._explained():
            streaming = self._completions.with_streaming_response.create(**_arguments(request))
            async with streaming as response:
                async for line in response.iter_lines():
                    data = line.removeprefix("data:").strip()
                    if data == line or not data:  # a comment, another field, or between events
                        continue
                    if data == "[DONE]":
                        break
                    yield self._decoded(data.encode())

    @property
    def _completions(self) -> Any:
        assert self._client is not None, "use an Upstream as an async context manager"
        return self._client.chat.completions

    def _secrets(self) -> list[str]:
        return [self._api_key] if self._api_key else []

    def _what_to_check(self) -> str:
        name = self.config.api_key_env
        key = f"the key in {name} (engine.api_key_env)" if name else "engine.api_key_env, not set"
        return f"check --model, --engine.base_url and {key}"


def _arguments(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request as SDK arguments: parameters unknown to the SDK pass unchanged."""
    rest = {key: value for key, value in request.items() if key not in ("model", "messages")}
    return {"model": request["model"], "messages": request["messages"], "extra_body": rest}
