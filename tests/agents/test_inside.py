"""Programs that run inside of the environment's sandbox, against a real gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from arl_agents.command.agent import Command
from arl_agents.command.inside import MOUNT
from arl_agents.command.presets import PRESETS, launch_of

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import AgentError, EnvError, Task
from agentgym_rl.engines.scripted import ScriptedEngine
from agentgym_rl.gateway import AgentClients, ChatFormat, Gateway, SessionSampling
from agentgym_rl.gym import Env, Step, make, make_sandbox, spec
from agentgym_rl.models.resolve import BUNDLED
from tests.contracts.sandboxes import SYSTEM_PYTHON, working
from tests.exhaustive import REQUIRED

sys.path.append(str(Path(__file__).parents[2]))  # the comparison is a benchmark's
from benchmarks.client_loops.play import Case, Script, call, differences
from benchmarks.exactness_loops import views

MAX_MODEL_LEN = 400_000
BASES = {"python:3.11-slim": "arl-sandbox:latest"}
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


def solution() -> dict[str, str]:
    """The arguments of the edit that repairs the task."""
    from arl_envs.harbor.tasks import make_task

    steps = json.loads(make_task(the_task()).solution["steps.json"])
    return steps[0]["arguments"]


def the_task() -> Task:
    return spec("harbor:bugs").task_source("train", seed=3)[0]


def play(chat, agent, script=(), *, sandbox="local", **options):
    """Play one episode in a sandbox; returns the record, the last step, and what of the rows
    differs from the engine's journal."""
    working(sandbox)
    task = the_task()
    engine = ScriptedEngine(script, max_model_len=MAX_MODEL_LEN)
    gateway = Gateway(
        engine, chat, config=GatewayConfig(), model_name="m", max_model_len=MAX_MODEL_LEN
    )
    sampling = SessionSampling(max_tokens=512, temperature=1.0)
    session = gateway.open_session(sampling=sampling, session_id="e", turn_timeout_s=60)
    steps = []

    async def main():
        async with contextlib.AsyncExitStack() as stack:
            sandboxes = await stack.enter_async_context(make_sandbox(sandbox, **options))
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
    record = gateway.close_session(session)
    names = [session.request_id(node.request) for node in session.tree.turns]
    return record, steps[-1], differences(record.rows, names, views.scripted(engine.journal))


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
    said = [chat.encode(f"{json.dumps(solution())}<|im_end|>")]
    record, step, wrong = play(chat, agent, said)
    assert (step.reward, step.terminated) == (1.0, True)
    assert step.info["dropped_files"] == {}
    assert not wrong
    [row] = record.rows
    assert row.num_trained > 0


def test_a_program_reaches_the_model_and_nothing_else(chat):
    agent = Command(argv=["python3", "-c", OTHER_ADDRESS], inside=True)
    record, step, _ = play(chat, agent)
    assert (step.reward, record.num_turns) == (0.0, 0)


SHOWN = """#!/bin/sh
test "$PATH" = "/opt/agents/bin:$BEFORE" || exit 3
test "$HOME" = /tmp/agent/home && test "$TMPDIR" = /tmp/agent && test "$(pwd)" = /app || exit 4
test "$(command -v agent-of-mine)" = /opt/agents/bin/agent-of-mine || exit 5
"""


def test_a_program_of_the_shown_folder_is_found_by_its_name(chat, tmp_path):
    from arl_sandboxes.local.layers import PATH

    file = tmp_path / "bin" / "agent-of-mine"
    file.parent.mkdir()
    file.write_text(SHOWN)
    file.chmod(0o755)
    tmp_path.chmod(0o755)
    agent = Command(argv=[file.name], env=[f"BEFORE={PATH}"], inside=True)
    record, step, _ = play(chat, agent, mounts={MOUNT: str(tmp_path)})
    assert (step.info["verifier"], record.num_turns) == ("wrong", 0)


def test_codex_makes_no_sandbox_in_ours():
    told = {"OPENAI_BASE_URL": "u", "OPENAI_API_KEY": "k", "ARL_MODEL": "m", "ARL_ANSWER_FILE": "a"}
    for confined, mode in ((True, "danger-full-access"), (False, "workspace-write")):
        launch = launch_of(PRESETS["codex"], told, home="/h", own_tools=True, confined=confined)
        assert f'sandbox_mode = "{mode}"' in launch.files[".codex/config.toml"]


@pytest.mark.slow
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


# ---------------------------------------------------------------------- real command lines
DONE = "I repaired the line."
TESTS = "python3 -B -m unittest 2>&1 | tail -n 1"


def in_shell() -> str:
    """The command that repairs the task."""
    edit = solution()
    code = "import pathlib, sys; f = pathlib.Path(sys.argv[1]); t = f.read_text(); "
    code += "assert t.count(sys.argv[2]) == 1; f.write_text(t.replace(*sys.argv[2:]))"
    return shlex.join(["python3", "-c", code, edit["path"], edit["old"], edit["new"]])


def claude_code() -> Case:
    edit = solution()
    file = f"/app/{edit['path']}"
    change = {"old_string": edit["old"], "new_string": edit["new"]}
    replies = [
        "I read the file.\n" + call("Read", file_path=file),
        call("Edit", file_path=file, **change),
        call("Bash", command=TESTS, description="Runs the tests"),
        DONE,
    ]
    return Case(replies=replies, tool="Edit")


def codex() -> Case:
    commands = [f"cat {solution()['path']}", in_shell(), TESTS]
    return Case(
        replies=[*(call("exec_command", cmd=each) for each in commands), DONE], tool="exec_command"
    )


def mini_swe_agent() -> Case:
    submit = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff --stat 2>&1 | tail -n 1"
    commands = ["ls", in_shell(), TESTS, submit]
    return Case(replies=[call("bash", command=each) for each in commands], tool="bash")


PLAYED = {"claude-code": claude_code, "codex": codex, "mini-swe-agent": mini_swe_agent}


def programs(preset: str) -> Path:
    """The folder with the preset's program; skips without, fails where ARL_REQUIRE names agents."""
    folder = Path(os.environ.get("ARL_CLI_MODULES", "")).parent
    if not (folder / "bin" / PRESETS[preset].program).exists():
        wanted = "agents" in REQUIRED
        (pytest.fail if wanted else pytest.skip)(f"{preset} is not installed (make test-agents)")
    return folder


def like_the_images() -> bool:
    """Whether the Python of the docker image, the machine's, is of this one's version."""
    ask = "import sys; print(sys.version_info[:2])"
    said = subprocess.run([SYSTEM_PYTHON, "-c", ask], check=True, capture_output=True, text=True)
    return said.stdout.strip() == str(sys.version_info[:2])


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", ["local", "docker"])
@pytest.mark.parametrize("preset", PLAYED)
def test_a_command_line_solves_a_task_with_its_own_tools(chat, preset, sandbox):
    folder, case = programs(preset), PLAYED[preset]()
    if (sandbox, preset) == ("docker", "mini-swe-agent") and not like_the_images():
        pytest.skip("the image has another Python than this, for which the packages are")
    script = Script(case, chat)
    more = {"bases": BASES} if sandbox == "docker" else {}
    agent = Command(preset=preset, inside=True)
    record, step, wrong = play(
        chat, agent, script, sandbox=sandbox, mounts={MOUNT: str(folder)}, **more
    )
    assert (step.reward, step.info["verifier"]) == (1.0, "ok")
    assert step.info["dropped_files"] == {}
    changed = [line for line in step.info["patch"].splitlines() if line.startswith("+++ ")]
    assert changed == [f"+++ b/{solution()['path']}"], "it left files of its own"
    assert solution()["new"] in step.info["patch"]
    assert script.unused == 0
    assert not wrong
    assert (len(record.rows), record.num_turns) == (1, len(case.replies))
    assert record.rows[0].num_trained > 0
