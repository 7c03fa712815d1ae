"""Streamed conversations with a tool through real SDKs: what was sampled is what is recorded."""

import json
from pathlib import Path

import pytest
from arl_agents.command.agent import Command

from agentgym_rl.core import Task
from agentgym_rl.gym import Env, Step

pytestmark = [
    pytest.mark.slow,  # they take seconds to import
    pytest.mark.usefixtures("collected"),
    pytest.mark.filterwarnings("ignore"),  # those of frameworks are not ours to mend
]

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2,  "b":3}}\n</tool_call>'
REPLIES = [f"Let me add. {CALL}", "It is 5."]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ADD = {"type": "function", "function": {"name": "add", "description": "", "parameters": SCHEMA}}
FIRST = [{"role": "system", "content": "Add."}, {"role": "user", "content": "2+3?"}]


def added(arguments: str) -> str:
    read = json.loads(arguments)
    return str(read["a"] + read["b"])


def check(scripted, converse) -> None:
    """`converse(client)` gives the last text and each turn's [prompt, completion] tokens."""
    (text, usage), record, engine = scripted.talk(converse, REPLIES)
    asked = [[len(entry.prompt), len(entry.token_ids)] for entry in engine.journal]
    assert (text, usage) == ("It is 5.", asked)
    assert record.counters["forks"] == 0
    [row] = record.rows
    assert row.tokens.tolist() == [*engine.journal[-1].prompt, *engine.journal[-1].token_ids]
    assert record.counters["tool_calls"] == 1


def test_openai(scripted):
    strict = {"type": "function", "function": {**ADD["function"], "strict": True}}

    async def converse(client):
        messages, usage = list(FIRST), []
        for _ in REPLIES:
            fields = {"model": "m", "messages": messages, "tools": [strict]}
            async with client.chat.completions.stream(
                **fields, stream_options={"include_usage": True}
            ) as stream:
                reply = await stream.get_final_completion()
            usage.append([reply.usage.prompt_tokens, reply.usage.completion_tokens])
            said = reply.choices[0].message
            messages.append(said.to_dict())
            for call in said.tool_calls or []:
                content = added(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
        return messages[-1]["content"], usage

    check(scripted, converse)


def test_langchain(need, scripted):
    langchain = need("langchain_openai")

    async def converse(client):
        url = str(client.base_url)
        llm = langchain.ChatOpenAI(
            model="m", base_url=url, api_key=client.api_key, stream_usage=True
        ).bind_tools([ADD])
        messages, usage = list(FIRST), []
        for _ in REPLIES:
            chunks = [chunk async for chunk in llm.astream(messages)]
            said = sum(chunks[1:], start=chunks[0])
            counted = said.usage_metadata
            usage.append([counted["input_tokens"], counted["output_tokens"]])
            messages.append(said)
            for call in said.tool_calls:
                content = added(json.dumps(call["args"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        return messages[-1].content, usage

    check(scripted, converse)


def test_litellm(need, scripted):
    litellm = need("litellm")

    async def converse(client):
        messages, usage = list(FIRST), []
        for _ in REPLIES:
            stream = await litellm.acompletion(
                model="openai/m",
                base_url=str(client.base_url),
                api_key=client.api_key,
                messages=messages,
                tools=[ADD],
                stream=True,
                stream_options={"include_usage": True},
            )
            reply = litellm.stream_chunk_builder([chunk async for chunk in stream])
            usage.append([reply.usage.prompt_tokens, reply.usage.completion_tokens])
            said = reply.choices[0].message
            messages.append(said.model_dump(exclude_none=True))
            for call in said.tool_calls or []:
                content = added(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
        return messages[-1]["content"], usage

    check(scripted, converse)


def test_openai_agents(need, scripted):
    need("agents.tool")
    sdk = need("agents")

    async def answer(context, arguments):
        return added(arguments)

    async def converse(client):
        tool = sdk.FunctionTool("add", "", SCHEMA, answer, strict_json_schema=False)
        model = sdk.OpenAIChatCompletionsModel("m", client)
        settings = sdk.ModelSettings(include_usage=True)
        agent = sdk.Agent("adds", model=model, tools=[tool], model_settings=settings)
        run = sdk.Runner.run_streamed(
            agent, list(FIRST), run_config=sdk.RunConfig(tracing_disabled=True)
        )
        async for _ in run.stream_events():
            pass
        counted = [reply.usage for reply in run.raw_responses]
        return run.final_output, [[u.input_tokens, u.output_tokens] for u in counted]

    check(scripted, converse)


class Sink(Env):
    """Offers a tool that the program answers itself; takes what it says in the end."""

    tools = (ADD,)

    async def reset(self, *, seed=None, options=None):
        return list(FIRST), {}

    async def step(self, action):
        self.said = action["content"]
        return Step([], 0.0, True, False, {})


def test_node(node_program, scripted):
    agent = Command(argv=node_program(Path(__file__).with_name("stream.mjs")), mcp=False)

    async def converse(client):
        env = Sink()
        await agent.run(env, client, model="m", task=Task("t", 0))
        said = json.loads(env.said)
        return said["text"], said["usage"]

    check(scripted, converse)
