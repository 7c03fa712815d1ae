"""The connection to a model served elsewhere: requests, retries, and attribution of failures.

`OpenAIUpstream` reaches an OpenAI-compatible URL, through the OpenAI SDK.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Self

import msgspec

from agentgym_rl.config import EndpointConfig
from agentgym_rl.core import ConfigError, EngineError
from agentgym_rl.gateway import ApiError
from agentgym_rl.gateway.errors import Withheld
from agentgym_rl.runtime import bound_response

from .odd_replies import withholds

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_SHOWN = 500
"""The number of characters of a server's own text that an error repeats."""
_NO_USE = (401, 403, 404)
"""The statuses for a wrong key, no permission, no such model or path: all requests would fail."""
TRANSIENT = (408, 409, 429)
"""The statuses, besides 5xx, after which the same request may succeed."""
_BROKEN = ("error", "abort", "aborted", "cancelled")
"""The finish reasons of replies that the endpoint gave up (OpenRouter, SGLang)."""


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    id: str | None = None
    index: int | None = None
    function: _Function | None = None


class _Message(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | float | None = None
    reasoning_tokens: int | float | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | float | None = None
    completion_tokens: int | float | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Completion(msgspec.Struct):
    """The fields of a completion, or of a chunk of one, that are read."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None


class Upstream(ABC):
    """A client of `model`; an async context manager that owns the connections.

    Keys stay in here: they are removed from errors. `api_key`: "" if none is needed, or if the SDK
    finds it itself. `timeout_s`: the longest silence of one attempt.
    """

    advice = ""
    """The advice if no request can succeed; by default, to check the keys of `arl eval`."""

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
        """Release the connections."""

    @abstractmethod
    async def whole(self, request: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
        """Return the completion for `request`: its bytes, and their decoded content.

        Raises:
            EngineError: the endpoint failed, after all retries.
            ApiError: the endpoint refuses this particular request (`Withheld`: a content filter
                does); the agent gets the error.
        """

    @abstractmethod
    def events(self, request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the chunks of the completion for `request` (with `stream`).

        Raises:
            EngineError, ApiError: as for `whole`, perhaps after some chunks.
        """

    def cost_usd(self, usage: Mapping[str, Any] | None) -> float | None:
        """Return the cost of a completion with this `usage`; None if unknown."""
        return None

    async def watch(self) -> NoReturn:
        """Wait until it is clear that no request can succeed, and raise the reason.

        Raises:
            ConfigError: a wrong key, URL or model, or a parameter the model refuses.
        """
        await self._changed.wait()
        assert self._unusable is not None
        raise self._unusable

    # ------------------------------------------------------------------ failures by endpoint
    @property
    def _where(self) -> str:
        """Return " at URL", or "" without a URL."""
        return f" at {self.config.base_url}" if self.config.base_url else ""

    @abstractmethod
    def _secrets(self) -> list[str]:
        """Return the values that no error may show."""

    @abstractmethod
    def _what_to_check(self) -> str:
        """Return advice for a wrong key or model."""

    def _is_overflow(self, error: Exception) -> bool:
        """Return whether the conversation is too long; vLLM and llama.cpp lack OpenAI's code."""
        if getattr(error, "code", None) == "context_length_exceeded":
            return True
        kind = getattr(error, "type", None)
        is_stated = getattr(error, "status_code", None) == 400 and (
            "maximum context length" in str(error)
        )
        return is_stated or kind == "exceed_context_size_error"

    def _is_withheld(self, error: Exception) -> bool:
        """Return whether a content filter withholds the reply."""
        return withholds(getattr(error, "body", None))

    def _message_of(self, error: Exception) -> str:
        """Return the endpoint's error message."""
        body = getattr(error, "body", None) or error
        return self._shown(body.get("message", body) if isinstance(body, dict) else body)

    def _refused_parameter(self, error: Exception) -> str | None:
        """Return the parameter that the model does not accept, as the endpoint reports it."""
        return getattr(error, "param", None)

    # ------------------------------------------------------------------ failures
    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the SDK's errors, and those of the connection below it, into our own."""
        try:
            yield
        except (ApiError, EngineError):
            raise
        except Exception as error:
            raise self._judged(error) from error

    def _judged(self, error: Exception) -> Exception:
        """Attribute an error: to all requests (`watch` raises), the endpoint, or this request."""
        status: int | None = getattr(error, "status_code", None)
        if status is None:  # the SDK's error is vaguer than its cause, if there is one
            cause = error.__cause__ if str(error.__cause__ or "") else error
            message = f"{type(cause).__name__}: {self._shown(cause)}"
            if "Timeout" in message and "ConnectTimeout" not in message:
                message += (
                    " (an attempt may be silent for engine.request_timeout_s, by default "
                    "rollout.turn_timeout_s: raise it for a slow model)"
                )
            return self._failure(message)
        message = self._message_of(error)
        code, param = getattr(error, "code", None), self._refused_parameter(error)
        answered = f"it answered {status}: {message}"
        if self._is_overflow(error):
            return ApiError(400, message, param="messages", code="context_length_exceeded")
        if status in (400, 403) and self._is_withheld(error):
            return Withheld(status, message, param=param, code=code)
        if status in _NO_USE or code in ("invalid_api_key", "model_not_found"):
            return self._give_up(f"{answered}\n{self.advice or self._what_to_check()}")
        if param in {*self.config.send, *self.config.extra_body}:
            advice = self.advice or self._other_parameters(param)
            return self._give_up(f"{answered}\n{advice}")
        if status == 429:
            answered += "\n(eval.max_concurrent limits the concurrent episodes)"
        if status in TRANSIENT or status not in range(400, 500):
            return self._failure(answered)
        return ApiError(status, message, param=param, code=code)

    def _failure(self, what: str) -> EngineError:
        return EngineError(f"{self.model}{self._where}: {what}")

    def _give_up(self, what: str) -> EngineError:
        """Return the failure of this request, and end all requests."""
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
        if error := value.get("error"):  # some send it with status 200, and all of them in a stream
            if withholds(error):
                code = error.get("code") if isinstance(error, dict) else None
                raise Withheld(400, self._shown(error), code=code)
            raise self._failure(self._shown(error))
        try:
            completion = msgspec.convert(value, _Completion)
        except msgspec.ValidationError as error:
            raise self._failure(f"this is no completion ({error}): {self._shown(data)}") from error
        if any((each.finish_reason or "").lower() in _BROKEN for each in completion.choices or ()):
            raise self._failure(f"it gave the reply up: {self._shown(data)}")
        return value

    def _completion(self, data: bytes) -> dict[str, Any]:
        """Return the completion in `data`."""
        completion = self._decoded(data)
        match completion:
            case {"choices": [{"message": {}}, *_]}:
                return completion
        raise self._failure(f"this is no chat completion: {self._shown(data)}")


class OpenAIUpstream(Upstream):
    """A client of the endpoint at `config.base_url`."""

    _client: AsyncOpenAI | None = None

    async def __aenter__(self) -> Self:
        import openai

        self._client = openai.AsyncOpenAI(
            base_url=self.config.base_url,
            api_key=self._api_key or "none",  # the SDK requires a key
            max_retries=self.config.max_retries,
            timeout=self._timeout_s,
            default_headers={"Accept-Encoding": "identity"},
            http_client=openai.DefaultAioHttpClient(event_hooks={"response": [bound_response]}),
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
