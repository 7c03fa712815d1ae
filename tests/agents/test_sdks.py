"""Agents written with real SDKs, each on a real small model: nothing forks, a row an episode."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from arl_agents.command.agent import Command
from arl_agents.react import React

from agentgym_rl.core import Outcome
from agentgym_rl.gym import Agent, make_agent
from tests.kit.cases import cases

pytestmark = [
    pytest.mark.slow,  # they take seconds to import
    pytest.mark.usefixtures("collected"),
    pytest.mark.filterwarnings("ignore"),  # those of frameworks are not ours to mend
]
EXAMPLES = Path(__file__).parents[2] / "examples"


def _openai_agents(need, **options) -> Agent:
    need("agents.tool")
    return make_agent("arl_agents.openai_agents:OpenAIAgents", **options)


def _litellm(need) -> Agent:
    need("litellm")
    return make_agent("arl_agents.litellm:LiteLLM")


def _langgraph(need) -> Agent:
    need("langgraph")
    need("langchain_openai")
    return make_agent("langgraph_agent:Graph")


AGENTS: dict[str, Callable[..., Agent]] = {
    "openai": lambda need: React(),
    "openai-agents": _openai_agents,
    "openai-agents-responses": functools.partial(_openai_agents, api="responses"),
    "litellm": _litellm,
    "langgraph": _langgraph,
}


def check(played) -> None:
    assert [each.error for each in played] == [""] * len(played)
    assert {each.outcome for each in played} <= {Outcome.COMPLETED, Outcome.TRUNCATED}
    for each in played:
        assert each.metrics["forks"] == 0
        assert len(each.rows) == 1
        assert each.rows[0].num_trained == each.metrics["sampled_tokens"]
    assert sum(each.metrics["tool_calls"] for each in played) > 0


@cases("name", AGENTS)
def test_sums_are_one_exact_row_each(name, need, small):
    check(small.play(AGENTS[name](need), "math", episodes=3))


@cases("name", AGENTS)
def test_errands_are_one_exact_row_each(name, need, small):
    check(small.play(AGENTS[name](need), "tools", episodes=2))


def test_a_program_over_mcp_plays(small):
    agent = Command(argv=[sys.executable, str(EXAMPLES / "mcp_agent.py")])
    check(small.play(agent, "tools", episodes=1))


@pytest.mark.parametrize("env", ["math", "tools"])
def test_a_program_in_node_plays(env, node_program, small):
    agent = Command(argv=node_program(EXAMPLES / "node_agent" / "agent.mjs"))
    check(small.play(agent, env, episodes=2))
