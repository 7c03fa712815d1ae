"""Every SDK on every engine: a conversation with a tool is one row, which is the engine's own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from arl_agents.command.agent import Command

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import Task
from agentgym_rl.gateway import AgentClients, Gateway, SessionSampling
from agentgym_rl.gym import Env, Step
from tests.kit.cases import cases

sys.path.append(str(Path(__file__).parent))

import engines
from talks import FIRST, NEXT, TALKS, TOOL, TURNS, ReplyText

from benchmarks.exactness_loops.compare import compare

pytestmark = [
    pytest.mark.slow,  # they take seconds to import
    pytest.mark.usefixtures("collected"),
    pytest.mark.filterwarnings("ignore"),  # those of frameworks are not ours to mend
]
SAMPLING = SessionSampling(max_tokens=64, temperature=0.3, seed=5)
"""Cool enough for a small model to keep to the form of calls."""
_CALL = '<tool_call>\n{"name": "calculator", "arguments": %s}\n</tool_call>'
REPLIES = [
    f'Let me see. {_CALL % """{"expression": "57*22",  "x":1.0}"""}',
    "It is 1254 ✓.",
    _CALL % '{"expression":"490-137"}' + "\n" + _CALL % '{"expression": "é\\u00e9"}',
    _CALL % "{}",
    "\\boxed{353} 漢",
]


@pytest.fixture(scope="module", params=["scripted", "embedded", "vllm"])
def opened(request, tmp_path_factory):
    """Opens an engine, and what it says of itself."""
    kind = request.param
    if kind == "scripted":
        chat = request.getfixturevalue("chat")
        yield kind, lambda: engines.scripted(chat, REPLIES)
        return
    if kind == "vllm" and not os.environ.get("ARL_VLLM_PYTHON"):
        pytest.skip("no vLLM here: ARL_VLLM_PYTHON names no interpreter (make test-vllm)")
    made = engines.vllm() if kind == "vllm" else engines.embedded(tmp_path_factory.mktemp("e"))
    with made as engine:
        yield kind, engine.open


def converse(opened, chat, talk):
    """What the SDK was told, the session's record, its turns' requests, and the engine's view."""

    async def main():
        async with opened() as (engine, views):
            gateway = Gateway(
                engine, chat, config=GatewayConfig(), model_name="m",
                max_model_len=engines.MAX_MODEL_LEN,
            )  # fmt: skip
            async with gateway.serve() as url, AgentClients(url) as clients:
                session = gateway.open_session(sampling=SAMPLING, session_id="e")
                told = await talk(clients.for_session(session))
                record = gateway.close_session(session)
            names = [session.request_id(node.request) for node in session.tree.turns]
            return told, record, names, views()

    return asyncio.run(main())


def check(opened, chat, talk) -> None:
    kind, engine = opened
    told, record, names, views = converse(engine, chat, talk)
    assert len(names) == TURNS
    assert sorted(views) == sorted(names)
    assert [(len(views[n].prompt), len(views[n].ids)) for n in names] == [
        (said.prompt_tokens, said.completion_tokens) for said in told
    ]
    for name, said in zip(names, told, strict=True):
        assert said.text.strip() == text_of(chat, views[name].ids)
    wrong = compare(record.rows, names, views, delivered=names, temperature=SAMPLING.temperature)
    assert not wrong
    assert len(record.rows) == 1
    assert record.counters["forks"] == 0
    assert record.counters["tool_calls"] >= (4 if kind == "scripted" else 1)
    assert record.rows[0].num_trained == sum(len(views[name].ids) for name in names)


def text_of(chat, ids) -> str:
    """The text of sampled tokens, without calls."""
    text = chat.text(ids).removesuffix("<|im_end|>")
    before, call, rest = text.partition("<tool_call>")
    return before.strip() if call and "</tool_call>" in rest else text.strip()


@cases("stream", [False, True], ids=["whole", "streamed"])
@cases("name", TALKS)
def test_a_conversation_is_one_exact_row(name, stream, opened, chat, need):
    check(opened, chat, lambda client: TALKS[name](client, need, stream=stream))


class Sink(Env):
    """Offers a tool that the program answers itself; takes what it says in the end."""

    tools = (TOOL,)

    async def reset(self, *, seed=None, options=None):
        return list(FIRST), {}

    async def step(self, action):
        self.said = action["content"]
        return Step([], 0.0, True, False, {})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_conversation_in_node_is_one_exact_row(stream, opened, chat, node_program):
    how = [f"TALK_TURNS={TURNS}", f"TALK_NEXT={NEXT}", *(["TALK_STREAM=1"] if stream else [])]
    program = node_program(Path(__file__).with_name("talk.mjs"))
    agent = Command(argv=program, mcp=False, env=how)

    async def talk(client):
        env = Sink()
        await agent.run(env, client, model="m", task=Task("t", 0))
        return [ReplyText(*each) for each in json.loads(env.said)]

    check(opened, chat, talk)
