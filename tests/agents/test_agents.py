"""React, SingleTurn and Swe against a real gateway, the real SDK, and a scripted model."""

import asyncio
import contextlib
import json

import pytest
from arl_agents.react import React
from arl_agents.single_turn import SingleTurn
from arl_agents.swe import METHOD, SUMMARY, Swe

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import Task
from agentgym_rl.engines.scripted import ScriptedEngine
from agentgym_rl.gateway import AgentClients, ChatFormat, Gateway, SessionSampling
from agentgym_rl.gym import Env, Step
from agentgym_rl.models.resolve import BUNDLED

GOOD = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": \n</tool_call>'
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


class Adding(Env):
    """Adds two numbers when asked to; a message without calls is the answer, 5 is right."""

    def __init__(self, tools=(ADD,)):
        self.tools = tools
        self.actions = []
        self.steps = []

    async def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": "2+3?"}], {}

    async def step(self, action):
        self.actions.append(action)
        self.steps.append(self._answer(action))
        return self.steps[-1]

    def _answer(self, action):
        calls = action.get("tool_calls")
        if not calls:
            return Step([], float("5" in (action["content"] or "")), True, False, {})
        messages = [
            {"role": "tool", "tool_call_id": call["id"], "content": _added(call["function"])}
            for call in calls
        ]
        return Step(messages, 0.0, False, False, {})


def _added(function):
    try:
        arguments = json.loads(function["arguments"])
        return str(arguments["a"] + arguments["b"])
    except (ValueError, KeyError) as error:
        return f"error: {type(error).__name__}"


@pytest.fixture(scope="module")
def chat():
    return ChatFormat.load(BUNDLED)


def play(chat, agent, env, replies):
    """Play one episode; returns the record and the engine."""
    engine = ScriptedEngine([chat.encode(f"{reply}<|im_end|>") for reply in replies])
    gateway = Gateway(engine, chat, config=GatewayConfig(), model_name="tiny", max_model_len=1024)
    sampling = SessionSampling(max_tokens=256, temperature=1.0)
    session = gateway.open_session(sampling=sampling, session_id="e")

    async def main():
        async with contextlib.AsyncExitStack() as stack:
            base_url = await stack.enter_async_context(gateway.serve())
            clients = await stack.enter_async_context(AgentClients(base_url))
            client = clients.for_session(session)
            await agent.run(env, client, model="tiny", task=Task("t", 0))

    asyncio.run(main())
    return gateway.close_session(session), engine


def test_react_calls_the_tool_and_answers(chat):
    env = Adding()
    record, engine = play(chat, React(), env, [f"Let me add. {GOOD}", "It is 5."])
    assert [step.reward for step in env.steps] == [0.0, 1.0]
    assert [message["role"] for message in record.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    [row] = record.rows
    last = engine.journal[-1]
    assert row.tokens.tolist() == [*last.prompt, *last.token_ids]
    assert record.counters["forks"] == 0


def test_react_recovers_from_a_malformed_call(chat):
    env = Adding()
    record, _ = play(chat, React(), env, [BROKEN, GOOD, "It is 5."])
    told = [step.observation[0]["content"] for step in env.steps[:2]]
    assert told == ["error: JSONDecodeError", "5"]
    assert env.steps[-1].reward == 1
    assert record.counters["malformed_calls"] == 1
    assert len(record.rows) == 1


def test_react_answers_every_call_of_a_turn(chat):
    env = Adding()
    record, _ = play(chat, React(), env, [f"{GOOD}\n{GOOD}", "It is 5."])
    assert len(env.steps[0].observation) == 2
    assert record.counters["tool_calls"] == 2
    assert len(record.rows) == 1


@pytest.mark.parametrize("max_turns", [1, 3])
def test_react_stops_at_its_turn_limit(chat, max_turns):
    env = Adding()
    record, _ = play(chat, React(max_turns=max_turns), env, [GOOD] * 5)
    assert record.num_turns == len(env.actions) == max_turns
    assert not env.steps[-1].terminated


def test_react_refuses_a_limit_that_lets_it_say_nothing():
    with pytest.raises(TypeError, match="max_turns"):
        React(max_turns=0)


def test_react_without_tools_offers_none(chat):
    env = Adding(tools=())
    record, engine = play(chat, React(), env, ["It is 5."])
    assert env.steps[-1].reward == 1
    assert "<tools>" not in chat.text(engine.journal[0].prompt)
    assert record.num_turns == 1


def test_single_turn_asks_once_and_offers_no_tools(chat):
    env = Adding()
    record, engine = play(chat, SingleTurn(), env, [GOOD, "never said"])
    assert env.actions == [{"role": "assistant", "content": GOOD}]
    assert record.num_turns == len(engine.journal) == 1
    assert "<tools>" not in chat.text(engine.journal[0].prompt)


def test_swe_plays_as_react_does_with_advice(chat):
    env = Adding()
    record, engine = play(chat, Swe(), env, [f"Let me add. {GOOD}", "It is 5."])
    assert env.steps[-1].reward == 1
    assert METHOD in chat.text(engine.journal[0].prompt)
    assert len(record.rows) == 1
    _, plain = play(chat, Swe(advice=""), Adding(), [GOOD, "It is 5."])
    _, react = play(chat, React(), Adding(), [GOOD, "It is 5."])
    assert [turn.prompt for turn in plain.journal] == [turn.prompt for turn in react.journal]


def test_swe_goes_on_from_its_own_summary(chat):
    env = Adding()
    written = "Two and three were added, which gave five; only the answer is missing."
    replies = [GOOD, written, "It is 5."]
    record, engine = play(chat, Swe(advice="", summary_tokens=1), env, replies)
    assert [step.reward for step in env.steps] == [0.0, 1.0]
    assert record.num_turns == 3
    assert chat.text(engine.journal[-1].prompt).count(SUMMARY + written) == 1
    assert "<tool_response>" not in chat.text(engine.journal[-1].prompt)
    assert (len(record.rows), record.counters["forks_summary"]) == (2, 1)
    trained = sum(row.num_trained for row in record.rows)
    assert trained == sum(len(turn.token_ids) for turn in engine.journal)


def test_swe_counts_summaries_as_replies(chat):
    env = Adding()
    record, _ = play(chat, Swe(max_turns=4, summary_tokens=1), env, [GOOD] * 6)
    assert record.num_turns == 4
    assert len(env.actions) == 2


def test_swe_refuses_a_negative_number_of_tokens():
    with pytest.raises(TypeError, match="summary_tokens"):
        Swe(summary_tokens=-1)
