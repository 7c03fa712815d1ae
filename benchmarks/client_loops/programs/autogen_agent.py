"""AutoGen: an assistant agent."""

import asyncio

from _problem import FIRST, KEY, MODEL, SECOND, SYSTEM, URL, calculator
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

info = ModelInfo(
    vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True
)


async def main() -> None:
    client = OpenAIChatCompletionClient(model=MODEL, base_url=URL, api_key=KEY, model_info=info)
    agent = AssistantAgent(
        "helper", client, tools=[calculator], system_message=SYSTEM, max_tool_iterations=5
    )
    await agent.run(task=FIRST)
    print((await agent.run(task=SECOND)).messages[-1].content)
    await client.close()


asyncio.run(main())
