"""A LangGraph agent: the model and the environment are its two nodes.

pip install langchain-openai langgraph
PYTHONPATH=examples arl train --env tools --agent langgraph_agent:Graph
"""

import json

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command

from agentgym_rl import Agent


class Graph(Agent):
    """Asks, acts, reads what came back, and asks again."""

    async def run(self, env, client, *, model, task):
        url, key = str(client.base_url), client.api_key
        llm = ChatOpenAI(model=model, base_url=url, api_key=key, max_retries=0)
        llm = llm.bind_tools(list(env.tools)) if env.tools else llm

        async def ask(state):
            return {"messages": [await llm.ainvoke(state["messages"])]}

        async def act(state):
            step = await env.step(action(state["messages"][-1]))
            over = step.terminated or step.truncated
            return Command(update={"messages": step.observation}, goto=END if over else "ask")

        messages, _ = await env.reset()
        graph = StateGraph(MessagesState).add_node(ask).add_node(act, destinations=("ask", END))
        loop = graph.add_edge(START, "ask").add_edge("ask", "act").compile()
        await loop.ainvoke({"messages": messages}, {"recursion_limit": 1000})


def action(said):
    """The assistant message: calls whose arguments LangChain could not read belong to it."""
    calls = [*said.tool_calls, *said.invalid_tool_calls]
    return {"role": "assistant", "content": said.content, "tool_calls": [*map(as_sent, calls)]}


def as_sent(call):
    arguments = call["args"] if isinstance(call["args"], str) else json.dumps(call["args"])
    function = {"name": call["name"], "arguments": arguments}
    return {"id": call["id"], "type": "function", "function": function}
