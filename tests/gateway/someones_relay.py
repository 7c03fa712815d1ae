"""A relay to SomeonesModel, or to any other app, and SDKs that speak to it over HTTP."""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
from arl_endpoints.endpoint import OpenAIEngineConfig
from arl_endpoints.relay import Relay
from arl_endpoints.upstream import OpenAIUpstream

from agentgym_rl.config import GatewayConfig
from agentgym_rl.gateway import Session, SessionSampling
from agentgym_rl.runtime import serving

NAME = "someones/model"
FUNCTION = {"name": "add", "parameters": {"type": "object", "properties": {}}}
CHAT_TOOL = {"type": "function", "function": FUNCTION}
RESPONSES_TOOL = {"type": "function", **FUNCTION}
MESSAGES_TOOL = {"name": "add", "input_schema": FUNCTION["parameters"]}


def calling(arguments: str = '{"a":  1}', **more: Any) -> dict[str, Any]:
    """A message with a call whose id is the endpoint's own."""
    call = {"id": "theirs+1", "function": {"name": "add", "arguments": arguments}}
    return {"content": "Let me.", "tool_calls": [{**call, "type": "function"}], **more}


@dataclass
class Relayed:
    relay: Relay
    session: Session
    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic

    def close(self):
        return self.relay.close_session(self.session)


@contextlib.asynccontextmanager
async def relayed(
    app: Any,
    *,
    api_key: str = "k",
    temperature: float | None = None,
    gateway: GatewayConfig | None = None,
    **engine: Any,
):
    policy = SessionSampling(max_tokens=256, temperature=temperature, train=False)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(120))
        url = await stack.enter_async_context(serving(app, host="127.0.0.1", port=0))
        config = OpenAIEngineConfig(base_url=f"{url}/v1", max_retries=0, **engine)
        asking = OpenAIUpstream(config, model=NAME, api_key=api_key, timeout_s=20)
        upstream = await stack.enter_async_context(asking)
        relay = Relay(upstream, config=gateway or GatewayConfig())
        session = relay.open_session(sampling=policy, session_id="e", turn_timeout_s=20)
        here = await stack.enter_async_context(relay.serve())
        named: dict[str, Any] = {"api_key": session.key, "max_retries": 0}
        speaker = openai.AsyncOpenAI(base_url=here, **named)
        claude = anthropic.AsyncAnthropic(base_url=here.removesuffix("/v1"), **named)
        await stack.enter_async_context(speaker)
        await stack.enter_async_context(claude)
        yield Relayed(relay, session, speaker, claude)


def talk(app: Any, converse: Any, **options: Any) -> Any:
    """What `converse(relayed)` returns."""

    async def main() -> Any:
        async with relayed(app, **options) as scene:
            return await converse(scene)

    return asyncio.run(main())


async def respond(scene: Relayed, *, stream: bool, **fields: Any) -> Any:
    """A Response, whole or put together by the SDK."""
    fields = {"model": NAME, "tools": [RESPONSES_TOOL], **fields}
    if not stream:
        return await scene.openai.responses.create(**fields)
    async with scene.openai.responses.stream(**fields) as events:
        return await events.get_final_response()


async def message(scene: Relayed, *, stream: bool, **fields: Any) -> Any:
    """A Message, whole or put together by the SDK."""
    fields = {"model": NAME, "max_tokens": 300, "tools": [MESSAGES_TOOL], **fields}
    if not stream:
        return await scene.anthropic.messages.create(**fields)
    async with scene.anthropic.messages.stream(**fields) as events:
        return await events.get_final_message()
