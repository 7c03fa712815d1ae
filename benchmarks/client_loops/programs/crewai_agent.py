"""CrewAI: a crew of one agent with two tasks."""

from _problem import FIRST, KEY, MODEL, SECOND, SYSTEM, URL, calculator
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

llm = LLM(model=f"openai/{MODEL}", base_url=URL, api_key=KEY)
agent = Agent(role="helper", goal=SYSTEM, backstory="A helper.", tools=[tool(calculator)], llm=llm)
tasks = [
    Task(description=text, expected_output="A short answer.", agent=agent)
    for text in (FIRST, SECOND)
]
print(Crew(agents=[agent], tasks=tasks).kickoff())
