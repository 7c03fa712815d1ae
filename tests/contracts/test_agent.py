"""What every agent promises, run over all agents that are installed."""

import asyncio
import contextlib
import inspect
import sys
from pathlib import Path

import pytest

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import AgentError, ConfigError, EnvError, Task
from agentgym_rl.engines.scripted import Say, ScriptedEngine
from agentgym_rl.gateway import AgentClients, ChatFormat, Gateway, SessionSampling
from agentgym_rl.gym import Agent, Env, Step, listing
from agentgym_rl.models.resolve import BUNDLED
from tests.exhaustive import REQUIRED
from tests.kit.cases import cases

PROGRAM = Path(__file__).with_name("program.py")
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


class Patient(Env):
    """Ends after so many steps; checks that it is not stepped after its end."""

    tools = (TOOL,)

    def __init__(self, *, ends_after=6, fails=False):
        self.first = [{"role": "user", "content": "Begin."}]
        self.num_steps = self.num_resets = 0
        self._ends_after = ends_after
        self._fails = fails

    async def reset(self, *, seed=None, options=None):
        assert seed is None
        assert not options
        self.num_resets += 1
        return self.first, {}

    async def step(self, action):
        assert action["role"] == "assistant"
        assert self.num_steps < self._ends_after, "stepped after the end"
        self.num_steps += 1
        if self._fails:
            raise EnvError("planted")
        calls = action.get("tool_calls") or []
        new = [{"role": "tool", "tool_call_id": call["id"], "content": "no"} for call in calls]
        new = new or [{"role": "user", "content": "And?"}]
        ended = self.num_steps == self._ends_after
        return Step(new, 0.0, ended, False, {})


@pytest.fixture(scope="module")
def chat():
    return ChatFormat.load(BUNDLED)


OPTIONS = {"command-v0": {"argv": [sys.executable, "-S", str(PROGRAM)]}}
"""Of the agents that cannot be made without."""


@pytest.fixture(params=[row.id for row in listing("agent")])
def agent(request):
    [row] = [row for row in listing("agent") if row.id == request.param]
    assert row.spec is not None, row.error
    try:
        return row.spec.make(**OPTIONS.get(row.id, {}))
    except ConfigError as error:
        if "pip install" not in str(error) or "agents" in REQUIRED:
            raise
        pytest.skip(str(error))


def _play(chat, agent, env, say):
    engine = ScriptedEngine(lambda _: say)
    gateway = Gateway(engine, chat, config=GatewayConfig(), model_name="m", max_model_len=2048)
    sampling = SessionSampling(max_tokens=64, temperature=1.0)
    session = gateway.open_session(sampling=sampling, session_id="e", turn_timeout_s=100)

    async def main():
        async with contextlib.AsyncExitStack() as stack:
            clients = AgentClients(await stack.enter_async_context(gateway.serve()))
            client = (await stack.enter_async_context(clients)).for_session(session)
            try:
                async with asyncio.timeout(200):  # the first one imports its framework
                    await agent.run(env, client, model="m", task=Task("t", 0))
            except Exception as error:  # handed over, so that serving ends in peace
                return error
            return None

    failed = asyncio.run(main())
    record = gateway.close_session(session)
    if failed is not None:
        raise failed
    return record, engine


SAYS = [CALL, "Hello.", "<tool_call>{</tool_call>", ""]


@cases("text", SAYS)
def test_an_agent_plays_on_whatever_the_model_says(chat, agent, text):
    env = Patient()
    record, engine = _play(chat, agent, env, chat.encode(text + "<|im_end|>"))
    assert env.num_resets == 1
    assert env.num_steps == record.num_turns == len(engine.journal) >= 1
    assert len(record.rows) == 1


def test_an_agent_stops_when_the_episode_ends(chat, agent):
    env = Patient(ends_after=1)
    record, _ = _play(chat, agent, env, chat.encode(CALL + "<|im_end|>"))
    assert env.num_steps == record.num_turns == 1


def test_an_agent_leaves_the_environments_messages_alone(chat, agent):
    env = Patient()
    _play(chat, agent, env, chat.encode(CALL + "<|im_end|>"))
    assert env.first == [{"role": "user", "content": "Begin."}]


def test_an_agent_hides_no_failure_of_the_environment(chat, agent):
    with pytest.raises(EnvError, match="planted"):
        _play(chat, agent, Patient(fails=True), chat.encode("Hello.<|im_end|>"))


def test_an_agent_hides_no_failure_of_the_engine(chat, agent):
    openai = pytest.importorskip("openai")
    with pytest.raises((openai.APIStatusError, AgentError)):
        _play(chat, agent, Patient(), Say(chat.encode("Hello."), fail_after=0))


def test_one_agent_plays_many_episodes(chat, agent):
    for _ in range(2):
        record, _ = _play(chat, agent, Patient(), chat.encode("Hello.<|im_end|>"))
        assert record.num_turns >= 1


def test_an_agent_has_the_contracts_signature(agent):
    assert isinstance(agent, Agent)
    assert inspect.signature(agent.run).parameters.keys() >= {"env", "client", "model", "task"}
