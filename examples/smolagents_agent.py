"""A ToolCallingAgent of smolagents, which is synchronous: it runs the loop in a thread.

pip install smolagents
PYTHONPATH=examples arl train --env math --agent smolagents_agent:Calling --model bundled/agents
"""

import asyncio
import functools
import json
from concurrent.futures import ThreadPoolExecutor

import openai
import smolagents
from arl_agents.bridge import EnvTools

from agentgym_rl import Agent

THREADS = ThreadPoolExecutor(256)  # episodes at once


@functools.cache
def connections():
    """Return the connections of all episodes: new ones would read all certificates, for 40 ms."""
    return openai.DefaultHttpxClient(trust_env=False)


class Calling(Agent):
    """Calls the environment's tools until it calls `final_answer` of smolagents."""

    async def run(self, env, client, *, model, task):
        tools, loop = EnvTools(env), asyncio.get_running_loop()
        *_, question = (await env.reset())[0]

        def call(name, arguments):  # in the thread
            step = tools.call(name, json.dumps(arguments))
            answer = asyncio.run_coroutine_threadsafe(step, loop).result(client.timeout)
            if tools.ended:
                agent.interrupt()
            return answer

        sdk = {"timeout": client.timeout, "max_retries": 0, "http_client": connections()}
        url, key = str(client.base_url), client.api_key
        agent = smolagents.ToolCallingAgent(
            tools=[as_tool(spec, call) for spec in env.tools],
            model=smolagents.OpenAIModel(model, url, key, client_kwargs=sdk, retry=False),
            max_steps=5,
            verbosity_level=smolagents.LogLevel.OFF,
        )
        try:
            answer = await loop.run_in_executor(THREADS, agent.run, question["content"])
        except smolagents.AgentError:
            if not tools.ended:
                raise
        else:
            await env.step({"role": "assistant", "content": rf"\boxed{{{answer}}}"})
        finally:  # the request of a cancelled episode ends with its session
            agent.interrupt()


def as_tool(spec, call):
    """Make a tool of smolagents; each of its calls is a step."""
    function = spec["function"]
    properties = function["parameters"]["properties"]

    class Tool(smolagents.Tool):
        name, description = function["name"], function["description"]
        inputs = {key: {"description": "", **value} for key, value in properties.items()}  # noqa: RUF012
        output_type = "string"
        skip_forward_signature_validation = True

        def forward(self, **arguments):
            return call(self.name, arguments)

    return Tool()
