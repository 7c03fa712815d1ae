"""The calls to a judge's server: deadlines, retries, and the attribution of errors.

A server that cannot be reached, or that fails, is infrastructure: `InfraError`, so that the episode
is played again and never gets a reward of 0. A server that refuses the request (a wrong key, model
or parameter, or a text that is too long or that a filter rejects) would refuse it again:
`JudgeRefusal`, an `EnvError` with its message.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from agentgym_rl import ConfigError, EnvError, InfraError
from agentgym_rl.core import is_url
from agentgym_rl.runtime import HttpClient, environment_secrets, load_litellm
from agentgym_rl.runtime.imports import check_litellm

LITELLM = "litellm:"
"""The beginning of the name of a model that LiteLLM reaches."""
_TRANSIENT = (408, 409, 425, 429)
"""The statuses, besides 5xx, after which the same request may succeed."""
_OF_NO_TEXT = (401, 402, 404, 405, 407, 410, 421, 426)
"""The statuses that concern the key, the account or the address: no text is blamed for them, nor
for a status below 400."""
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 8.0
_SHOWN = 300
_ANSWER_BYTES = 4 << 20
"""The longest answer: a verdict, or a number."""


class JudgeRefusal(EnvError):
    """The refusal of a request by a server that works."""

    metric = "judge_refused"
    message: str = ""
    """The message of the server."""


class Endpoint:
    """A server of a model; `timeout_s` is the longest time of one attempt.

    Raises:
        ConfigError: a value that cannot work.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None,
        api_key_env: str | None,
        timeout_s: float,
        max_retries: int,
    ) -> None:
        if model.startswith(LITELLM) == (base_url is not None):
            raise ConfigError(
                f"judge {model!r} with base_url {base_url!r}: expected a URL such as "
                f"http://HOST:8000/v1, or a model {LITELLM}PROVIDER/NAME without one"
            )
        if base_url is not None and not is_url(base_url):
            raise ConfigError(f"base_url {base_url!r}: expected http://HOST:PORT/v1 or https://…")
        if not timeout_s > 0 or max_retries < 0:
            raise ConfigError(
                f"timeout_s {timeout_s} and max_retries {max_retries}: expected seconds above 0, "
                "and a number from 0"
            )
        if base_url is None:
            check_litellm(f"judge {model!r}")
        self.model = model
        self.base_url = base_url and base_url.rstrip("/")
        self._key_env = api_key_env
        self._timeout_s = timeout_s
        self._max_retries = max_retries

    @property
    def longest_s(self) -> float:
        """Return the longest time of `ask`: all attempts, and the waits between them."""
        return (self._max_retries + 1) * self._timeout_s + self._max_retries * _LONGEST_WAIT_S

    async def ask(self, path: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the server's answer to `request`, a JSON object, after retries.

        Raises:
            InfraError: the server failed at every attempt, or sends no JSON object.
            JudgeRefusal: the server refuses the request.
            EnvError: there is no key.
        """
        wait_s = _FIRST_WAIT_S
        for attempt in range(self._max_retries + 1):
            try:
                return await self._once(path, request)
            except InfraError:
                if attempt == self._max_retries:
                    raise
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        raise AssertionError("the last attempt returns or raises")

    def tokens(self, reply: Mapping[str, Any], name: str) -> int:
        """Return a number of tokens in the `usage` of a reply; 0 if it has none.

        Raises:
            InfraError: it is no number.
        """
        match reply.get("usage"):
            case None:
                return 0
            case dict() as usage:
                count: Any = usage.get(name)
                if count is None:
                    return 0
                if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
                    return count
            case _:
                pass
        raise self._failed(f"its usage is {self._shown(str(reply.get('usage')))}, no counts")

    async def _once(self, path: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if self.base_url is None:
            return await self._litellm(request)
        body = msgspec.json.encode({"model": self.model, **request})
        try:
            async with HttpClient(pooled=False) as http:
                status, data = await http.call(
                    *(self.base_url, "POST", path),
                    body=body,
                    headers={"Content-Type": "application/json", **self._authorization()},
                    timeout_s=self._timeout_s,
                    max_bytes=_ANSWER_BYTES,
                )
        except OSError as error:  # TimeoutError, too
            raise self._failed(f"{type(error).__name__}: {error}") from error
        if status != 200:
            raise self._judged(status, data.decode(errors="replace"))
        try:
            found = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._failed(f"its answer is no JSON ({error})") from error
        if not isinstance(found, dict):
            raise self._failed(f"its answer is {self._shown(str(found))}")
        if found.get("error"):  # routers of several providers pass a refusal on with status 200
            raise self._judged(_status(found["error"]), str(found["error"]))
        return found

    async def _litellm(self, request: Mapping[str, Any]) -> dict[str, Any]:
        # In a thread: the first import takes seconds, in which the event loop has other work.
        litellm: Any = await asyncio.to_thread(load_litellm, f"judge {self.model!r}")
        name, key = self.model.removeprefix(LITELLM), self._key()
        once = {"max_retries": 0, "num_retries": 0}  # `ask` repeats what may succeed
        given = {**once, **request, **({"api_key": key} if key else {})}
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await litellm.acompletion(model=name, **given)
        except TimeoutError as error:
            raise self._failed(f"no answer within {self._timeout_s:g} s") from error
        except Exception as error:  # LiteLLM's errors are those of many SDKs
            status = getattr(error, "status_code", None)
            raise self._judged(status if isinstance(status, int) else 500, str(error)) from error
        found = answer.model_dump(mode="json", exclude_none=True)
        try:
            # LiteLLM returns 0 for many models whose price it does not know.
            found["usd"] = litellm.completion_cost(answer, model=name) or None
        except Exception:  # a bare Exception for a model without a price
            found["usd"] = None
        return found

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"} if (key := self._key()) else {}

    def _key(self) -> str:
        if self._key_env is None:
            return ""
        if not (key := os.environ.get(self._key_env, "")):
            raise EnvError(f"judge {self.model}: no key in {self._key_env} (api_key_env)")
        return key

    def _judged(self, status: int, message: str) -> Exception:
        answered = f"it answered {status}: {self._shown(message)}"
        if status in _TRANSIENT or status >= 500:
            return self._failed(answered)
        error = self.refused(answered, message)
        return EnvError(str(error)) if status < 400 or status in _OF_NO_TEXT else error

    def malformed(self, reply: Mapping[str, Any]) -> InfraError:
        """Return the error of an answer that is no reply of a chat model."""
        return self._failed(f"its answer has no message: {self._shown(str(reply))}")

    def refused(self, what: str, message: str = "") -> JudgeRefusal:
        """Return the error of a refusal; `message` is the server's message."""
        error = JudgeRefusal(
            f"judge {self._where()}: {what}\ncheck its model, base_url, api_key_env, "
            "response_format and content filter, and whether its context takes the question; the "
            "same request would be refused again"
        )
        error.message = message
        return error

    def _failed(self, what: str) -> InfraError:
        return InfraError(f"judge {self._where()}: {what}")

    def _where(self) -> str:
        return f"{self.model} at {self.base_url}" if self.base_url else self.model

    def _shown(self, text: str) -> str:
        keys = [os.environ.get(self._key_env, "")] if self._key_env else []
        if self.base_url is None:
            keys += environment_secrets()
        for key in filter(None, keys):
            text = text.replace(key, "[the API key]")
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _status(error: Any) -> int:
    """Return the status that an error in a body names; 500 if it names none."""
    code = error.get("code") if isinstance(error, Mapping) else None
    if isinstance(code, str) and code in _REFUSING:
        return 400
    try:
        return int(code) if isinstance(code, int | str) else 500
    except ValueError:
        return 500


_REFUSING = ("content_filter", "context_length_exceeded", "invalid_prompt")
"""The codes of OpenAI and Azure for a refusal that depends on the text."""
