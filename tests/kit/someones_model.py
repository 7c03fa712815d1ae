"""A foreign OpenAI-compatible server: a function gives its replies, and it keeps a journal."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from arl_envs.math.env import MathEnv
from arl_envs.math.oracle import solve

from agentgym_rl.runtime import read_body
from agentgym_rl.runtime.http_server import header, reply

KEY = "sk-very-secret-0123456789"


class Hang(Exception):
    """An answer that never comes."""


@dataclass
class Refusal(Exception):
    """An answer that is an error, or any bytes."""

    status: int
    body: Any = field(default_factory=dict)


@dataclass
class SomeonesModel:
    """The server; `say(messages)` is the assistant message of each reply."""

    say: Callable[[list[Mapping[str, Any]]], Mapping[str, Any]]
    usage: Mapping[str, int] | None = field(
        default_factory=lambda: {"prompt_tokens": 7, "completion_tokens": 3}
    )
    finish_reason: str | None = "stop"
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    async def __call__(self, scope, receive, send) -> None:
        request = json.loads(await read_body(receive, limit_bytes=10**6))
        self.requests.append(request)
        self.keys.append(header(scope, b"authorization"))
        assert scope["path"] == "/v1/chat/completions"
        try:
            message = {"role": "assistant", **self.say(request["messages"])}
        except Hang:
            return await asyncio.sleep(60)
        except Refusal as refusal:
            body = refusal.body
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            return await reply(send, refusal.status, data)
        if not request.get("stream"):
            return await reply(send, 200, self._whole(message))
        await reply(send, 200, self._streamed(message), content_type="text/event-stream")

    def _whole(self, message: Mapping[str, Any]) -> bytes:
        end = message.get("finish_reason", self.finish_reason)
        choice = {"index": 0, "message": message, "finish_reason": end}
        head = {"id": "c", "object": "chat.completion", "created": 0, "model": "m"}
        return json.dumps({**head, "choices": [choice], "usage": self.usage}).encode()

    def _streamed(self, message: Mapping[str, Any]) -> bytes:
        """Return the reply as a stream of one letter, or one tool call, at a time."""
        calls = enumerate(message.get("tool_calls") or ())
        spoken = ("reasoning_content", "content")
        deltas = [{name: letter} for name in spoken for letter in message.get(name) or ""]
        deltas += [{"tool_calls": [{"index": i, **call}]} for i, call in calls]
        choices = [{"index": 0, "delta": delta} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": self.finish_reason})
        head = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
        chunks = [{**head, "choices": [choice]} for choice in choices]
        chunks.append({**head, "choices": [], "usage": self.usage})
        lines = [": hello", *(f"data: {json.dumps(chunk)}\n" for chunk in chunks), "data: [DONE]\n"]
        return "\n".join([*lines, ""]).encode()


def gold(num_tasks: int) -> Callable[[list[Mapping[str, Any]]], Mapping[str, Any]]:
    """Return the perfect player of the first held-out math tasks."""
    source = MathEnv.task_source("eval", seed=0)
    tasks = [source[index] for index in range(num_tasks)]
    plans = {task.data["question"]: solve(task) for task in tasks}

    def say(messages: list[Mapping[str, Any]]) -> Mapping[str, Any]:
        turn = sum(message["role"] == "assistant" for message in messages)
        return plans[messages[1]["content"]][turn]

    return say


def nonsense(messages: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    return {"content": "I like trains."}


def refusing(status: int, body: Any = b"no") -> Callable[..., Mapping[str, Any]]:
    """Return a function that always gives the same error; a dict is OpenAI's error object."""

    def say(messages: list[Mapping[str, Any]]) -> Mapping[str, Any]:
        raise Refusal(status, {"error": body} if isinstance(body, dict) else body)

    return say


def hanging(messages: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    raise Hang


def failing_first(failures: int) -> Callable[..., Mapping[str, Any]]:
    """Return a function that gives the error 503 so many times, then nonsense."""
    left = [refusing(503)] * failures
    return lambda messages: (left.pop() if left else nonsense)(messages)
