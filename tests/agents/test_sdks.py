"""Agents written with real SDKs, each on a real small model: nothing forks, a row an episode."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from arl_agents.command.agent import Command
from arl_agents.react import React

from agentgym_rl.agent import Agent
from agentgym_rl.registry import make_agent
from agentgym_rl.trajectory import Outcome

pytestmark = pytest.mark.slow  # they take seconds to import
EXAMPLES = Path(__file__).parents[2] / "examples"


def _react(need) -> Agent:
    return React()


def _openai_agents(need) -> Agent:
    need("agents.tool")
    return make_agent("arl_agents.openai_agents:OpenAIAgents")


def _litellm(need) -> Agent:
    need("litellm")
    return make_agent("arl_agents.litellm:LiteLLM")


def _langgraph(need) -> Agent:
    need("langgraph")
    need("langchain_openai")
    return make_agent("langgraph_agent:Graph")


def _python_program(need) -> Agent:
    return Command(argv=[sys.executable, str(EXAMPLES / "mcp_agent.py")], env=["PYTHONPATH="])


def _node_program(need) -> Agent:
    modules = os.environ.get("ARL_NODE_MODULES", "")
    if not modules or shutil.which("node") is None:
        required = "agents" in os.environ.get("ARL_REQUIRE", "").split(",")
        (pytest.fail if required else pytest.skip)("ARL_NODE_MODULES names no folder, or no node")
    return Command(argv=["node", str(Path(modules).parent / "agent.mjs")])


AGENTS: dict[str, Callable[..., Agent]] = {
    "openai": _react,
    "openai-agents": _openai_agents,
    "litellm": _litellm,
    "langgraph": _langgraph,
    "mcp-program": _python_program,
    "node-program": _node_program,
}


@pytest.mark.parametrize("env", ["math", "tools"])
@pytest.mark.parametrize("name", AGENTS)
def test_episodes_are_one_exact_row_each(name, env, need, small):
    played = small.play(AGENTS[name](need), env, episodes=6)
    assert [each.error for each in played] == [""] * 6
    assert {each.outcome for each in played} <= {Outcome.COMPLETED, Outcome.TRUNCATED}
    assert sum(each.metrics["tool_calls"] for each in played) > 0
    for each in played:
        assert each.metrics["forks"] == 0
        assert len(each.rows) == 1
        assert each.rows[0].num_trained == each.metrics["sampled_tokens"]
