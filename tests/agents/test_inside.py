"""Programs that run inside of the environment's sandbox, against a real gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from arl_agents.command.agent import Command

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core.errors import AgentError, EnvError
from agentgym_rl.core.task import Task
from agentgym_rl.engines.scripted import ScriptedEngine
from agentgym_rl.gateway.client import AgentClients
from agentgym_rl.gateway.server.gateway import Gateway
from agentgym_rl.gateway.session.session import SessionSampling
from agentgym_rl.gateway.template.chat_format import ChatFormat
from agentgym_rl.gym.env import Env, Step
from agentgym_rl.gym.registry import make, make_sandbox, spec
from agentgym_rl.models.resolve import BUNDLED
from tests.contracts.sandboxes import working

REPAIR = """
import json, os, pathlib, sys, urllib.request
task = json.load(open(os.environ["ARL_TASK_FILE"]))
body = {"model": os.environ["ARL_MODEL"], "messages": task["messages"]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Content-Type": "application/json",
     "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
said = json.load(urllib.request.urlopen(request, timeout=60))
edit = json.loads(said["choices"][0]["message"]["content"])
file = pathlib.Path(edit["path"])
file.write_text(file.read_text().replace(edit["old"], edit["new"]))
assert sys.stdin.read().startswith("You work in a Linux terminal.")
open(os.environ["ARL_ANSWER_FILE"], "w").write("repaired")
"""
OTHER_ADDRESS = """
import os, socket
ours = int(os.environ["OPENAI_BASE_URL"].split(":")[2].split("/")[0])
for host, port in (("127.0.0.1", 22), ("10.0.0.1", 80), ("127.0.0.1", ours)):
    try:
        socket.create_connection((host, port), 2).close()
    except OSError:
        continue
    assert port == ours, (host, port)
assert {name for name in os.environ if "KEY" in name} == {"OPENAI_API_KEY", "ANTHROPIC_API_KEY"}
"""


@pytest.fixture(scope="module")
def chat():
    return ChatFormat.load(BUNDLED)


def solution_of(task: Task) -> str:
    """The arguments of the edit that repairs a task."""
    from arl_envs.harbor.tasks import make_task

    steps = json.loads(make_task(task).solution["steps.json"])
    return json.dumps(steps[0]["arguments"])


def play(chat, agent, replies=()):
    """Play one episode in the local sandbox; returns the record and the last step."""
    working("local")
    task = spec("harbor:bugs").task_source("train", seed=3)[0]
    said = [chat.encode(f"{reply or solution_of(task)}<|im_end|>") for reply in replies]
    engine = ScriptedEngine(said)
    gateway = Gateway(engine, chat, config=GatewayConfig(), model_name="m", max_model_len=4096)
    sampling = SessionSampling(max_tokens=512, temperature=1.0)
    session = gateway.open_session(sampling=sampling, session_id="e", turn_timeout_s=60)
    steps = []

    async def main():
        async with contextlib.AsyncExitStack() as stack:
            sandboxes = await stack.enter_async_context(make_sandbox("local"))
            clients = AgentClients(await stack.enter_async_context(gateway.serve()))
            client = (await stack.enter_async_context(clients)).for_session(session)
            env = make("harbor:bugs")
            stack.push_async_callback(env.close)
            given = Given(env, {"task": task, "sandboxes": sandboxes}, steps)
            try:
                await agent.run(given, client, model="m", task=task)
            except AgentError as error:  # handed over, so that all ends in peace
                return error
        return None

    if failed := asyncio.run(main()):
        raise failed
    return gateway.close_session(session), steps[-1]


class Given(Env):
    """An environment that has its options already, as agents get it."""

    def __init__(self, env, options, steps):
        self.env, self.options, self.steps = env, options, steps

    async def reset(self, *, seed=None, options=None):
        return await self.env.reset(options=self.options)

    async def open_sandbox(self):
        return await self.env.open_sandbox()

    async def step(self, action) -> Step:
        self.steps.append(await self.env.step(action))
        return self.steps[-1]


def test_a_program_repairs_the_files_and_its_tokens_are_recorded(chat):
    agent = Command(argv=["python3", "-c", REPAIR], inside=True)
    record, step = play(chat, agent, [""])
    assert (step.reward, step.terminated) == (1.0, True)
    assert step.info["dropped_files"] == []
    [row] = record.rows
    assert row.num_trained > 0


def test_a_program_reaches_the_model_and_nothing_else(chat):
    agent = Command(argv=["python3", "-c", OTHER_ADDRESS], inside=True)
    record, step = play(chat, agent)
    assert (step.reward, record.num_turns) == (0.0, 0)


def test_a_program_that_fails_is_the_agents_failure(chat):
    with pytest.raises(AgentError, match=r"exit code 3 .*; it said: oh"):
        play(chat, Command(argv=["sh", "-c", "echo oh >&2; exit 3"], inside=True))
    with pytest.raises(AgentError, match="no program 'claude' in the sandbox; to install it"):
        play(chat, Command(preset="claude-code", inside=True))


def test_an_environment_without_a_sandbox_is_refused():
    class Plain(Env):
        async def reset(self, *, seed=None, options=None):
            return [{"role": "user", "content": "Begin."}], {}

        async def step(self, action):
            raise AssertionError

    class Client:
        base_url = "http://127.0.0.1:1/v1/"
        api_key = "k"

    agent = Command(argv=["true"], inside=True)
    with pytest.raises(EnvError, match="no sandbox for programs"):
        asyncio.run(agent.run(Plain(), Client(), model="m", task=Task("t", 0)))
