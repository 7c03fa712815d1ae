"""Haystack: an agent component."""

from _problem import FIRST, KEY, MODEL, SECOND, SYSTEM, URL, calculator
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret

generator = OpenAIChatGenerator(model=MODEL, api_base_url=URL, api_key=Secret.from_token(KEY))
agent = Agent(chat_generator=generator, tools=[create_tool_from_function(calculator)])
messages = [ChatMessage.from_system(SYSTEM), ChatMessage.from_user(FIRST)]
messages = agent.run(messages=messages)["messages"]
print(agent.run(messages=[*messages, ChatMessage.from_user(SECOND)])["messages"][-1].text)
