"""Pydantic AI over chat completions, or over Responses with `responses`."""

import sys

from _problem import FIRST, MODEL, SECOND, SYSTEM, calculator
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

kind = OpenAIResponsesModel if "responses" in sys.argv else OpenAIChatModel
agent = Agent(kind(MODEL), system_prompt=SYSTEM, tools=[calculator])
found = agent.run_sync(FIRST)
print(agent.run_sync(SECOND, message_history=found.all_messages()).output)
