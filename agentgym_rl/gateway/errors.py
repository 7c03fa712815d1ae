"""The error replies of the gateway, in OpenAI's format."""

from __future__ import annotations

from typing import Any

_LONGEST = 10_000
"""The maximum length, in characters, of an error's message and of a parameter's name."""


class ApiError(Exception):
    """An error reply: HTTP `status` and OpenAI's error object.

    The header `x-should-retry: false` is set: OpenAI clients would otherwise send 408, 409, 429 and
    every 5xx again, and a turn must not be sampled twice without the agent's knowledge. With
    `retry_after_s` (nothing was sampled yet) the header asks for a retry.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        message, param = _shortened(message), param and _shortened(param)
        super().__init__(message)
        self.status = status
        self.code = code
        self.body: dict[str, Any] = {
            "error": {"message": message, "type": kind, "param": param, "code": code}
        }
        self.headers = {"x-should-retry": "false"}
        if retry_after_s is not None:
            self.headers = {"x-should-retry": "true", "retry-after": str(retry_after_s)}


class Withheld(ApiError):
    """The error of a request whose reply a content filter of the endpoint withholds."""


def _shortened(text: str) -> str:
    """Return a text, which may repeat client input, cut to the maximum length."""
    more = len(text) - _LONGEST
    return text if more <= 0 else f"{text[:_LONGEST]}… ({more} characters more)"


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """Return a 400: the request is wrong, and would be wrong again."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, why: str) -> ApiError:
    """Return a 400: the gateway cannot honour a parameter, and refuses rather than ignores it."""
    return bad_request(
        f"{param} is not supported: {why}", param=param, code="unsupported_parameter"
    )


def context_overflow(
    max_model_len: int, prompt_tokens: int, *, at_least: bool = False, param: str = "messages"
) -> ApiError:
    """Return a 400, in the words that client libraries recognise (OpenAI's).
    `at_least`: the tokens were not counted to the end."""
    count = f"at least {prompt_tokens}" if at_least else str(prompt_tokens)
    return bad_request(
        f"This model's maximum context length is {max_model_len} tokens. However, your request "
        f"has {count} input tokens. Please reduce the length of the input messages.",
        param=param,
        code="context_length_exceeded",
    )


def unknown_key() -> ApiError:
    """Return a 401."""
    return ApiError(401, "Incorrect API key provided.", code="invalid_api_key")


def wrong_method(method: str, path: str, *, allowed: str) -> ApiError:
    """Return a 405."""
    error = ApiError(405, f"{path} answers {allowed}, not {method}.", code="method_not_allowed")
    error.headers["allow"] = allowed
    return error


def no_websocket(path: str) -> ApiError:
    """Return a 426, after which clients (Codex) go on over HTTP."""
    error = ApiError(
        426,
        f"Websockets are not supported: send POST {path} over HTTP, with stream true for events.",
        code="websocket_not_supported",
    )
    error.headers["upgrade"] = "HTTP/1.1"
    return error


def session_closed() -> ApiError:
    """Return a 410: the episode is over, so a retry cannot help."""
    return ApiError(410, "This session is closed: its episode has ended.", code="session_closed")


def too_busy(who: str, limit: int, key: str) -> ApiError:
    """Return a 429: too many requests at once; this one was not processed."""
    return ApiError(
        429,
        f"Too many requests at once: {who} answers {limit} (gateway.{key}). Ask again.",
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        retry_after_s=1,
    )


def engine_failed(message: str) -> ApiError:
    """Return a 503: not the agent's fault; the runner of the episode decides how to go on."""
    return ApiError(503, message, kind="server_error", code="engine_failed")


def turn_timed_out(timeout_s: float) -> ApiError:
    """Return a 504: the engine gave nothing more of a reply in time."""
    return ApiError(
        504, f"No token of the reply for {timeout_s:g} s.", kind="server_error", code="turn_timeout"
    )
