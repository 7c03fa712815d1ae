"""LlamaIndex: a function agent."""

import asyncio

from _problem import FIRST, KEY, MODEL, SECOND, SYSTEM, URL, calculator
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.memory import Memory
from llama_index.llms.openai_like import OpenAILike

llm = OpenAILike(
    model=MODEL, api_base=URL, api_key=KEY, is_chat_model=True, is_function_calling_model=True
)
agent = FunctionAgent(tools=[calculator], llm=llm, system_prompt=SYSTEM)


async def main() -> None:
    memory = Memory.from_defaults()
    await agent.run(FIRST, memory=memory)
    print(await agent.run(SECOND, memory=memory))


asyncio.run(main())
