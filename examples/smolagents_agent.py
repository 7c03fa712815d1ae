"""A ToolCallingAgent of smolagents, which is synchronous: it runs the loop in a thread.

pip install smolagents
PYTHONPATH=examples arl train --env math --agent smolagents_agent:Calling --model bundled/agents
"""

import asyncio
import json

import smolagents
from arl_agents.bridge import EnvTools

from agentgym_rl import Agent


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

        url, limits = str(client.base_url), {"timeout": client.timeout, "max_retries": 0}
        llm = smolagents.OpenAIModel(model, url, client.api_key, client_kwargs=limits, retry=False)
        agent = smolagents.ToolCallingAgent(
            tools=[as_tool(spec, call) for spec in env.tools],
            model=llm,
            max_steps=5,
            verbosity_level=smolagents.LogLevel.OFF,
        )
        try:
            answer = await asyncio.to_thread(agent.run, question["content"])
        except smolagents.AgentError:
            if not tools.ended:
                raise
        else:
            await env.step({"role": "assistant", "content": rf"\boxed{{{answer}}}"})
        finally:  # of a cancelled episode: the thread's next request or step fails
            agent.interrupt()
            llm.client.close()


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
