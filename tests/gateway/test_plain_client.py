"""What agents' clients send is what the SDK's own would have sent."""

import asyncio
import contextlib
import json

import openai
import pytest
from openai.types.chat import ChatCompletionMessage

from agentgym_rl.gateway.client import plain_client_type
from tests.kit.cases import cases

httpx2 = pytest.importorskip("httpx2", reason="the SDK before 3 has another HTTP client")

_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
_TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "hello"}]},
    {"role": "assistant", "content": None, "tool_calls": [_CALL], "reasoning": {"of": [1, 2.5]}},
    {"role": "tool", "tool_call_id": "c", "content": "12"},
]
_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
_OWN = ChatCompletionMessage.model_validate({"role": "assistant", "content": "hi"})

_REQUESTS = {
    "plain": {"messages": _TALK, "tools": _TOOLS},
    "without tools": {"messages": _TALK, "temperature": 0.5, "stop": ["."]},
    "no tools": {"messages": _TALK, "tools": []},
    "omitted tools": {"messages": _TALK, "tools": openai.NOT_GIVEN},
    "a tuple": {"messages": tuple(_TALK), "tools": _TOOLS},
    "its own message": {"messages": [*_TALK[:2], _OWN], "tools": _TOOLS},
    "a body": {"messages": _TALK, "tools": _TOOLS, "extra_body": {"top_k": 3, "tools": []}},
    "streamed": {"messages": _TALK, "tools": _TOOLS, "stream": True},
}


async def _sent(kind, request):
    bodies = []

    def answer(request):
        bodies.append(json.loads(request.content))
        return httpx2.Response(400, json={"error": {"message": "no"}})

    transport = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    async with kind(
        base_url="http://gateway/v1", api_key="k", max_retries=0, http_client=transport
    ) as client:
        other = client.with_options(api_key="another")
        with contextlib.suppress(openai.BadRequestError):
            await other.chat.completions.create(model="m", **request)
    return bodies


@cases("name", _REQUESTS)
def test_the_same_body_is_sent(name):
    ours, theirs = (
        asyncio.run(_sent(kind, _REQUESTS[name]))
        for kind in (plain_client_type(), openai.AsyncOpenAI)
    )
    assert len(ours) == 1
    assert ours == theirs


def test_messages_are_asked_for_as_ever():
    with pytest.raises(TypeError, match="messages"):
        asyncio.run(_sent(plain_client_type(), {"tools": _TOOLS}))
