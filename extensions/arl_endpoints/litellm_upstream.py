"""The upstream for any model that LiteLLM reaches, through `litellm.acompletion`."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from agentgym_rl.config import EndpointConfig
from agentgym_rl.core import ConfigError
from agentgym_rl.runtime import environment_secrets, load_litellm

from .upstream import TRANSIENT, Upstream

_log = logging.getLogger(__name__)

_NEEDED_BY = "--engine=litellm"
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0


class LiteLLMUpstream(Upstream):
    """A client of a model PROVIDER/NAME; without an `api_key` LiteLLM looks for one."""

    def __init__(
        self, config: EndpointConfig, *, model: str, api_key: str, timeout_s: float
    ) -> None:
        super().__init__(config, model=model, api_key=api_key, timeout_s=timeout_s)
        self._litellm = load_litellm(_NEEDED_BY)

    async def _close(self) -> None:
        await self._litellm.close_litellm_async_clients()

    async def whole(self, request: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
        with self._explained():
            answer = (await self._request(request)).model_dump(mode="json", exclude_none=True)
        for choice in answer.get("choices") or ():
            choice.get("message", {}).setdefault("content", None)
        data = msgspec.json.encode(answer)
        return data, self._completion(data)

    async def events(self, request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        with self._explained():
            stream: Any = await self._request(request)
            async with aclosing(_chunks(stream)) as chunks:
                async for chunk in chunks:
                    yield chunk.model_dump(mode="json", exclude_none=True)

    def cost_usd(self, usage: Mapping[str, Any] | None) -> float | None:
        """Return the cost by LiteLLM's price table; None if the model is missing or free."""
        if not usage:
            return None
        try:
            answer = self._litellm.ModelResponse(
                model=self.model, usage=self._litellm.Usage(**usage)
            )
            return self._litellm.completion_cost(answer, model=self.model) or None
        except Exception as error:  # bare Exception for a model without a price
            _log.debug("no price of %s: %s", self.model, error)
            return None

    async def _request(self, request: Mapping[str, Any]) -> Any:
        """Return the response, or a stream that has begun; retry as long as that may help."""
        more: dict[str, Any] = {"api_key": self._api_key} if self._api_key else {}
        if self.config.base_url:
            more["api_base"] = self.config.base_url
        for attempt in range(self.config.max_retries + 1):
            try:
                return await self._litellm.acompletion(
                    **request, **more, timeout=self._timeout_s, max_retries=0, num_retries=0
                )
            except Exception as error:
                if attempt == self.config.max_retries or not _may_pass(error):
                    raise
                wait_s = _wait_s(error, attempt)
                _log.debug("retrying the request to %s in %.1f s", self.model, wait_s)
            await asyncio.sleep(wait_s)
        raise AssertionError("unreachable")

    # ------------------------------------------------------------------ failures
    def _secrets(self) -> list[str]:
        return environment_secrets(self._api_key)

    def _what_to_check(self) -> str:
        named = self.config.api_key_env
        key = f"in {named} (engine.api_key_env)" if named else "that LiteLLM reads for the provider"
        return f"check --model and the key {key}"

    def _is_overflow(self, error: Exception) -> bool:
        too_long = isinstance(error, self._litellm.ContextWindowExceededError)
        return too_long or super()._is_overflow(error)

    def _is_withheld(self, error: Exception) -> bool:
        is_filter = isinstance(error, self._litellm.ContentPolicyViolationError)
        return is_filter or super()._is_withheld(error)

    def _refused_parameter(self, error: Exception) -> str | None:
        if isinstance(error, self._litellm.UnsupportedParamsError):
            ours = [*self.config.send, *self.config.extra_body]
            return next((name for name in ours if f"'{name}'" in str(error)), None)
        return super()._refused_parameter(error)


def check_model(config: EndpointConfig, model: str) -> None:
    """Refuse a model that LiteLLM cannot reach, without any request.

    Raises:
        ConfigError: LiteLLM is not installed or knows no such provider, or there is no key.
    """
    litellm = load_litellm(_NEEDED_BY)
    try:
        litellm.get_llm_provider(model)
    except Exception as error:
        raise ConfigError(
            f"LiteLLM knows no provider of {model!r}: expected --model PROVIDER/NAME, like "
            "anthropic/NAME, gemini/NAME or openai/NAME (docs.litellm.ai/docs/providers)"
        ) from error
    missing = litellm.validate_environment(model).get("missing_keys") or []
    if missing and not config.api_key_env:
        raise ConfigError(
            f"no API key for {model}: LiteLLM looks for {', '.join(missing)} in the environment; "
            "engine.api_key_env may name another variable (for a server that wants no key, one "
            "with any text)"
        )


async def _chunks(stream: Any) -> AsyncGenerator[Any, None]:
    """Yield the chunks of LiteLLM's stream, and close it in every case."""
    try:
        async for chunk in stream:
            yield chunk
    finally:
        await stream.aclose()


def _may_pass(error: Exception) -> bool:
    """Return whether the same request may succeed later."""
    status = getattr(error, "status_code", None)
    return status is None or status in TRANSIENT or status >= 500


def _wait_s(error: Exception, attempt: int) -> float:
    """Return the wait that the endpoint requests, or an exponential one, in seconds; bounded, with
    jitter."""
    headers = getattr(error, "litellm_response_headers", None) or {}
    try:
        wanted = float(headers.get("retry-after") or 0)
    except ValueError:  # a date
        wanted = 0.0
    wait_s = wanted if wanted > 0 else _FIRST_WAIT_S * 2**attempt
    return min(wait_s, _LONGEST_WAIT_S) * (1 + 0.25 * random.random())
