"""Strands Agents."""

from _problem import FIRST, KEY, MODEL, SECOND, SYSTEM, URL, calculator
from strands import Agent, tool
from strands.models.openai import OpenAIModel

model = OpenAIModel(client_args={"base_url": URL, "api_key": KEY}, model_id=MODEL)
agent = Agent(model=model, tools=[tool(calculator)], system_prompt=SYSTEM, callback_handler=None)
agent(FIRST)
print(agent(SECOND))
