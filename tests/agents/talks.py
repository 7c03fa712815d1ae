"""The same conversation through every SDK: asks, answers calls, asks again, until `TURNS` replies.

Each talk yields what the SDK told of each reply: its text, and the tokens it counted.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

TURNS = 5
FIRST = [
    {"role": "system", "content": "Solve the problem. Put the final answer in \\boxed{}."},
    {"role": "user", "content": "Mia has 57 boxes with 22 cards in each box. How many cards?"},
]
NEXT = "Ann has 490 eggs and loses 137. How many eggs are there? ✓"
SCHEMA = {
    "type": "object",
    "properties": {"expression": {"type": "string"}},
    "required": ["expression"],
}
FUNCTION = {
    "name": "calculator",
    "description": "Do one arithmetic operation.",
    "parameters": SCHEMA,
}
TOOL = {"type": "function", "function": FUNCTION}


@dataclass(frozen=True)
class ReplyText:
    """One reply, as the SDK has it."""

    text: str
    prompt_tokens: int
    completion_tokens: int


def worked_out(arguments: Any) -> str:
    """What the tool answers."""
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        return f"{len(str(arguments['expression']))} ✓"
    except (ValueError, KeyError, TypeError) as error:
        return f"error: {type(error).__name__} ✗"


def _user(text: str = NEXT) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _answered(calls: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """To (id, arguments) of each call, or what a user says next."""
    answers = [
        {"role": "tool", "tool_call_id": id, "content": worked_out(arguments)}
        for id, arguments in calls
    ]
    return answers or [_user()]


# ---------------------------------------------------------------------- chat completions
async def openai(client: Any, need: Any, *, stream: bool) -> list[ReplyText]:
    messages, said = list(FIRST), []
    for _ in range(TURNS):
        fields = {"model": "m", "messages": messages, "tools": [TOOL]}
        if stream:
            options = {"stream": True, "stream_options": {"include_usage": True}}
            chunks = await client.chat.completions.create(**fields, **options)
            message, usage = await _gathered(chunks)
        else:
            reply = await client.chat.completions.create(**fields)
            message, usage = reply.choices[0].message.to_dict(), reply.usage
        text = message.get("content") or ""
        said.append(ReplyText(text, usage.prompt_tokens, usage.completion_tokens))
        calls = message.get("tool_calls") or []
        asked = [(call["id"], call["function"]["arguments"]) for call in calls]
        messages += [message, *_answered(asked)]
    return said


async def _gathered(chunks: Any) -> tuple[dict[str, Any], Any]:
    """A message and its usage. (The SDK's own helper takes strict tools alone, and raises where
    their arguments are malformed.)"""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    usage = None
    async for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            message["content"] += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                known = calls.setdefault(call.index, call.to_dict() | {"function": {}})
                for key, value in call.function.to_dict().items():
                    known["function"][key] = known["function"].get(key, "") + value
    return message | ({"tool_calls": [*calls.values()]} if calls else {}), usage


async def litellm(client: Any, need: Any, *, stream: bool) -> list[ReplyText]:
    sdk = need("litellm")
    messages, said = list(FIRST), []
    for _ in range(TURNS):
        reply = await sdk.acompletion(
            model="openai/m",
            base_url=str(client.base_url),
            api_key=client.api_key,
            messages=messages,
            tools=[TOOL],
            **({"stream": True, "stream_options": {"include_usage": True}} if stream else {}),
        )
        if stream:
            reply = sdk.stream_chunk_builder([chunk async for chunk in reply])
        message, usage = reply.choices[0].message, reply.usage
        said.append(ReplyText(message.content or "", usage.prompt_tokens, usage.completion_tokens))
        calls = [(call.id, call.function.arguments) for call in message.tool_calls or []]
        messages += [message.model_dump(exclude_none=True), *_answered(calls)]
    return said


async def langchain(client: Any, need: Any, *, stream: bool) -> list[ReplyText]:
    sdk = need("langchain_openai")
    llm = sdk.ChatOpenAI(
        model="m", base_url=str(client.base_url), api_key=client.api_key, stream_usage=True
    ).bind_tools([TOOL])
    messages: list[Any] = list(FIRST)
    said = []
    for _ in range(TURNS):
        if stream:
            chunks = [chunk async for chunk in llm.astream(messages)]
            reply = sum(chunks[1:], start=chunks[0])
        else:
            reply = await llm.ainvoke(messages)
        usage = reply.usage_metadata
        said.append(ReplyText(reply.content, usage["input_tokens"], usage["output_tokens"]))
        calls = [*reply.tool_calls, *reply.invalid_tool_calls]
        messages += [reply, *_answered([(call["id"], call["args"]) for call in calls])]
    return said


# ---------------------------------------------------------------------- other APIs
async def responses(client: Any, need: Any, *, stream: bool) -> list[ReplyText]:
    """The OpenAI SDK; streamed, the items are sent again, else the response before is named."""
    tool = {"type": "function", **FUNCTION, "strict": False}
    items: list[Any] = [FIRST[1]]
    said, fields = [], {"model": "m", "instructions": FIRST[0]["content"], "tools": [tool]}
    before: dict[str, Any] = {}
    for _ in range(TURNS):
        if stream:
            async with client.responses.stream(**fields, input=items) as events:
                reply = await events.get_final_response()
        else:
            reply = await client.responses.create(**fields, input=items, **before)
        usage = reply.usage
        said.append(ReplyText(reply.output_text, usage.input_tokens, usage.output_tokens))
        calls = [(i.call_id, i.arguments) for i in reply.output if i.type == "function_call"]
        more = [
            {"type": "function_call_output", "call_id": id, "output": worked_out(arguments)}
            for id, arguments in calls
        ] or [_user()]
        if stream:
            items = [*items, *(item.to_dict() for item in reply.output), *more]
        else:
            items, before = more, {"previous_response_id": reply.id}
    return said


async def anthropic(client: Any, need: Any, *, stream: bool) -> list[ReplyText]:
    sdk = need("anthropic")
    tool = {**FUNCTION, "input_schema": SCHEMA}
    tool.pop("parameters")
    fields = {"model": "m", "max_tokens": 64, "system": FIRST[0]["content"], "tools": [tool]}
    base = str(client.base_url).rstrip("/").removesuffix("/v1")
    messages, said = [FIRST[1]], []
    async with sdk.AsyncAnthropic(api_key=client.api_key, base_url=base) as claude:
        for _ in range(TURNS):
            if stream:
                async with claude.messages.stream(**fields, messages=messages) as events:
                    reply = await events.get_final_message()
            else:
                reply = await claude.messages.create(**fields, messages=messages)
            text = "".join(block.text for block in reply.content if block.type == "text")
            usage = reply.usage
            said.append(ReplyText(text, usage.input_tokens, usage.output_tokens))
            results = [
                {"type": "tool_result", "tool_use_id": b.id, "content": worked_out(b.input)}
                for b in reply.content
                if b.type == "tool_use"
            ]
            messages.append({"role": "assistant", "content": reply.content})
            messages.append({"role": "user", "content": results or NEXT})
    return said


# ---------------------------------------------------------------------- OpenAI Agents SDK
async def agents_chat(client: Any, need: Any, *, stream: bool) -> list[ReplyText]:
    need("agents.tool")
    return await _agents(need("agents"), "OpenAIChatCompletionsModel", client, stream=stream)


async def agents_responses(client: Any, need: Any, *, stream: bool) -> list[ReplyText]:
    need("agents.tool")
    return await _agents(need("agents"), "OpenAIResponsesModel", client, stream=stream)


async def _agents(sdk: Any, model: str, client: Any, *, stream: bool) -> list[ReplyText]:
    """It runs the loop up to a reply without calls; then a user asks again."""

    async def answer(_context: Any, arguments: str) -> str:
        return worked_out(arguments)

    tool = sdk.FunctionTool(
        "calculator", FUNCTION["description"], SCHEMA, answer, strict_json_schema=False
    )
    agent = sdk.Agent(
        "solver",
        model=getattr(sdk, model)("m", client),
        tools=[tool],
        model_settings=sdk.ModelSettings(include_usage=True),
    )
    config = sdk.RunConfig(tracing_disabled=True)
    items, said = list(FIRST), []
    while len(said) < TURNS:
        limits = {"max_turns": TURNS - len(said), "run_config": config}
        try:
            if stream:
                run = sdk.Runner.run_streamed(agent, items, **limits)
                async for _ in run.stream_events():
                    pass
            else:
                run = await sdk.Runner.run(agent, items, **limits)
        except sdk.MaxTurnsExceeded as error:  # it called a tool to the last
            return said + [_of_agents(reply) for reply in error.run_data.raw_responses]
        said += [_of_agents(reply) for reply in run.raw_responses]
        items = [*run.to_input_list(), _user()]
    return said


def _of_agents(reply: Any) -> ReplyText:
    texts = [
        part.text
        for item in reply.output
        if item.type == "message"
        for part in item.content
        if part.type == "output_text"
    ]
    return ReplyText("".join(texts), reply.usage.input_tokens, reply.usage.output_tokens)


Talk = Callable[..., Awaitable[list[ReplyText]]]
TALKS: Mapping[str, Talk] = {
    "openai": openai,
    "openai-responses": responses,
    "anthropic": anthropic,
    "openai-agents": agents_chat,
    "openai-agents-responses": agents_responses,
    "langchain-openai": langchain,
    "litellm": litellm,
}
