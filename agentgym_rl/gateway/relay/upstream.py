"""A model that somebody else serves: asked, asked again, and whose fault a failure is."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, Self

import msgspec

from agentgym_rl.config import EndpointConfig
from agentgym_rl.core.errors import ConfigError, EngineError
from agentgym_rl.gateway.errors import ApiError

_SHOWN = 500
"""Characters of a server's own words that an error repeats."""
_NO_USE = (401, 403, 404)
"""Wrong key, not allowed, no such model or path: no request would do better."""
TRANSIENT = (408, 409, 429)
"""Statuses, beside 5xx, after which the same request may do better."""


class Upstream(ABC):
    """Asks `model`; an async context manager that owns the connections.

    Keys stay in here: errors have them cut out. `api_key`: "" where none is wanted, or where the
    SDK finds it itself. `timeout_s`: longest silence of one attempt.
    """

    def __init__(
        self, config: EndpointConfig, *, model: str, api_key: str, timeout_s: float
    ) -> None:
        self.config = config
        self.model = model
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._unusable: ConfigError | None = None
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._close()

    @abstractmethod
    async def _close(self) -> None:
        """Let go of the connections."""

    @abstractmethod
    async def whole(self, request: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
        """The completion that `request` asks for: its bytes, and what they say.

        Raises:
            EngineError: the endpoint failed, after all retries.
            ApiError: it refuses this very request; the agent is told.
        """

    @abstractmethod
    def events(self, request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of the completion that `request` (with `stream`) asks for.

        Raises:
            EngineError, ApiError: as of `whole`, perhaps after some chunks.
        """

    def cost_usd(self, usage: Mapping[str, Any] | None) -> float | None:
        """What a completion with this `usage` cost; None: nobody knows."""
        return None

    async def watch(self) -> NoReturn:
        """Wait until it is clear that no request can succeed, and raise why.

        Raises:
            ConfigError: a wrong key, URL or model, or a parameter the model refuses.
        """
        await self._changed.wait()
        assert self._unusable is not None
        raise self._unusable

    # ------------------------------------------------------------------ what differs in failures
    @property
    def _where(self) -> str:
        """ " at URL"."""
        return f" at {self.config.base_url}" if self.config.base_url else ""

    @abstractmethod
    def _secrets(self) -> list[str]:
        """What no error may show."""

    @abstractmethod
    def _what_to_check(self) -> str:
        """After a wrong key or model."""

    def _is_overflow(self, error: Exception) -> bool:
        """Whether the conversation is too long; vLLM and llama.cpp lack OpenAI's code for it."""
        if getattr(error, "code", None) == "context_length_exceeded":
            return True
        kind = getattr(error, "type", None)
        said = getattr(error, "status_code", None) == 400 and "maximum context length" in str(error)
        return said or kind == "exceed_context_size_error"

    def _words(self, error: Exception) -> str:
        """What the endpoint said."""
        body = getattr(error, "body", None) or error
        return self._shown(body.get("message", body) if isinstance(body, dict) else body)

    def _refused_parameter(self, error: Exception) -> str | None:
        """The parameter that the model does not take, as the endpoint says it."""
        return getattr(error, "param", None)

    # ------------------------------------------------------------------ failures
    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the SDK's errors, and those of the connection below it, into ours."""
        try:
            yield
        except (ApiError, EngineError):
            raise
        except Exception as error:
            raise self._judged(error) from error

    def _judged(self, error: Exception) -> Exception:
        """Whose fault it is: everybody's (`watch` raises), the endpoint's, or the request's."""
        status: int | None = getattr(error, "status_code", None)
        if status is None:  # the SDK's error says less than the one below it, where that speaks
            cause = error.__cause__ if str(error.__cause__ or "") else error
            said = f"{type(cause).__name__}: {self._shown(cause)}"
            if "Timeout" in said:
                said += (
                    " (an attempt may be silent for engine.request_timeout_s, by default "
                    "rollout.turn_timeout_s: raise it for a slow model)"
                )
            return self._failure(said)
        said = self._words(error)
        code, param = getattr(error, "code", None), self._refused_parameter(error)
        answered = f"it answered {status}: {said}"
        if self._is_overflow(error):
            return ApiError(400, said, param="messages", code="context_length_exceeded")
        if status in _NO_USE or code in ("invalid_api_key", "model_not_found"):
            return self._give_up(f"{answered}\n{self._what_to_check()}")
        if param in {*self.config.send, *self.config.extra_body}:
            return self._give_up(f"{answered}\n{self._other_parameters(param)}")
        if status == 429:
            answered += "\n(eval.max_concurrent is how many episodes ask at once)"
        if status in TRANSIENT or status not in range(400, 500):
            return self._failure(answered)
        return ApiError(status, said, param=param, code=code)

    def _failure(self, what: str) -> EngineError:
        return EngineError(f"{self.model}{self._where}: {what}")

    def _give_up(self, what: str) -> EngineError:
        """The failure of this request, and the end of all of them."""
        failure = self._failure(what)
        self._unusable = self._unusable or ConfigError(str(failure))
        self._changed.set()
        return failure

    def _other_parameters(self, refused: str) -> str:
        if refused in self.config.extra_body:
            return f"change or drop --engine.extra_body.{refused}"
        left = [name for name in self.config.send if name != refused]
        if refused == "max_tokens":
            left.append("max_completion_tokens")
        return f"another value, or --engine.send={','.join(left)}, may do"

    def _shown(self, value: Any) -> str:
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        for secret in self._secrets():
            text = text.replace(secret, "[the API key]")
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"

    def _decoded(self, data: bytes) -> dict[str, Any]:
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._failure(f"this is no JSON ({error}): {self._shown(data)}") from error
        if not isinstance(value, dict):
            raise self._failure(f"this is no JSON object: {self._shown(data)}")
        if value.get("error"):  # some say it with status 200, and everybody in a stream
            raise self._failure(self._shown(value["error"]))
        return value

    def _completion(self, data: bytes) -> dict[str, Any]:
        """The completion that `data` spells."""
        completion = self._decoded(data)
        match completion:
            case {"choices": [{"message": {}}, *_]}:
                return completion
        raise self._failure(f"this is no chat completion: {self._shown(data)}")
