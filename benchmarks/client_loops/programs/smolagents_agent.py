"""smolagents: an agent that calls tools, or with `code` one that writes Python."""

import sys

from _problem import FIRST, KEY, MODEL, SECOND, URL, calculator
from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

model = OpenAIModel(MODEL, api_base=URL, api_key=KEY)
kind = CodeAgent if "code" in sys.argv else ToolCallingAgent
agent = kind(tools=[tool(calculator)], model=model, verbosity_level=0)
agent.run(FIRST)
print(agent.run(SECOND, reset=False))
