"""DSPy: a ReAct module."""

import dspy
from _problem import FIRST, KEY, MODEL, SECOND, URL, calculator

lm = dspy.LM(f"openai/{MODEL}", api_base=URL, api_key=KEY, cache=False, temperature=1.0)
dspy.configure(lm=lm)
agent = dspy.ReAct("question -> answer", tools=[calculator])
agent(question=FIRST)
print(agent(question=SECOND).answer)
