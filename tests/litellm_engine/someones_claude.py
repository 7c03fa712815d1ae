"""A small server that speaks Anthropic's Messages API, over the wire and by the book.

https://docs.anthropic.com/en/api/messages: what it is sent is held against the rules (a key in
`x-api-key`, a version, `max_tokens`, alternating roles, every `tool_result` answering a
`tool_use`), and a request that breaks one is answered with 400, as there.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from someones_model import Refusal

from agentgym_rl.runtime import read_body
from agentgym_rl.runtime.http_server import header, reply


@dataclass
class SomeonesClaude:
    """`say(messages)` is an assistant message of OpenAI's, as the oracle's are."""

    say: Callable[[list[Mapping[str, Any]]], Mapping[str, Any]]
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    async def __call__(self, scope, receive, send) -> None:
        request = json.loads(await read_body(receive, limit_bytes=10**6))
        self.requests.append(request)
        self.keys.append(header(scope, b"x-api-key"))
        try:
            assert scope["path"] == "/v1/messages", scope["path"]
            assert header(scope, b"anthropic-version"), "no anthropic-version"
            _check(request)
            message = self.say(_as_openai(request))
        except AssertionError as error:
            return await reply(send, 400, _error("invalid_request_error", str(error)))
        except Refusal as refusal:
            return await reply(send, refusal.status, _error(*refusal.body))
        whole = {**_HEAD, "content": _blocks(message), "stop_reason": _stop(message)}
        if not request.get("stream"):
            return await reply(send, 200, json.dumps({**whole, "usage": _USAGE}).encode())
        events = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in _events(whole))
        await reply(send, 200, events.encode(), content_type="text/event-stream")


_HEAD = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
_USAGE = {"input_tokens": 20, "cache_read_input_tokens": 80, "output_tokens": 5}


def _error(kind: str, message: str) -> bytes:
    error = {"type": kind, "message": message}
    return json.dumps({"type": "error", "error": error}).encode()


def _check(request: Mapping[str, Any]) -> None:
    assert isinstance(request.get("max_tokens"), int), "max_tokens: field required"
    roles = [message["role"] for message in request["messages"]]
    assert roles[::2] == ["user"] * len(roles[::2]), "messages: roles must alternate"
    assert roles[1::2] == ["assistant"] * len(roles[1::2]), "messages: roles must alternate"
    for tool in request.get("tools", ()):
        assert {"name", "input_schema"} <= tool.keys(), "tools: name and input_schema required"
    used: set[str] = set()
    for message in request["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else ():
            used |= {block["id"]} if block["type"] == "tool_use" else set()
            assert block["type"] != "tool_result" or block["tool_use_id"] in used, "no tool_use"


def _as_openai(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """As `say` wants it: the system prompt first, assistant turns counted."""
    system = request.get("system") or ""
    text = system if isinstance(system, str) else "".join(block["text"] for block in system)
    return [
        {"role": "system", "content": text},
        *({"role": m["role"], "content": _text(m["content"])} for m in request["messages"]),
    ]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content)


def _blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    text = [{"type": "text", "text": message["content"]}] if message.get("content") else []
    calls = [
        {
            "type": "tool_use",
            "id": f"toolu_{index}",
            "name": call["function"]["name"],
            "input": json.loads(call["function"]["arguments"]),
        }
        for index, call in enumerate(message.get("tool_calls") or ())
    ]
    return text + calls


def _stop(message: Mapping[str, Any]) -> str:
    return "tool_use" if message.get("tool_calls") else "end_turn"


def _events(whole: Mapping[str, Any]):
    start = {**whole, "content": [], "stop_reason": None, "usage": {**_USAGE, "output_tokens": 1}}
    yield {"type": "message_start", "message": start}
    for index, block in enumerate(whole["content"]):
        empty = {**block, "text": ""} if block["type"] == "text" else {**block, "input": {}}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        text = block.get("text") or json.dumps(block.get("input"))
        kind, key = ("text_delta", "text") if "text" in block else ("input_json_delta",) * 2
        key = "text" if kind == "text_delta" else "partial_json"
        for letter in text:
            delta = {"type": kind, key: letter}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    usage = {"output_tokens": _USAGE["output_tokens"]}
    yield {"type": "message_delta", "delta": delta, "usage": usage}
    yield {"type": "message_stop"}
