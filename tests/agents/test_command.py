"""Programs as agents: what they are told, what is a step, how they end, what is left of them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from arl_agents.command import program as programs
from arl_agents.command.agent import Command
from arl_agents.command.tool_server import MAX_WAITING, Calls, serving_tools

from agentgym_rl.core import AgentError, ConfigError, EnvError, InfraError, Outcome, Task
from agentgym_rl.engines.scripted import Say
from agentgym_rl.gym import Env, Step, spec
from tests.kit.cases import cases

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
TASK = Task("t", 0)


class Adding(Env):
    """Adds; ends after `ends_after` calls, or with an answer."""

    def __init__(self, *, ends_after: int = 9, fails: bool = False, tools=(ADD,)) -> None:
        self.actions: list[dict] = []
        self.tools, self.fails, self.ends_after = tools, fails, ends_after

    async def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": "2+3? ☃"}], {}

    async def step(self, action):
        self.actions.append(action)
        if self.fails:
            raise EnvError("planted")
        calls = action.get("tool_calls")
        if not calls:
            return Step([], float(action["content"] == "5"), True, False, {})
        arguments = json.loads(calls[0]["function"]["arguments"])
        content = str(sum(arguments.values()))
        observed = [{"role": "tool", "tool_call_id": calls[0]["id"], "content": content}]
        return Step(observed, 0.0, len(self.actions) == self.ends_after, False, {})


class Client:
    """What is read of an OpenAI client; these programs do not ask the model."""

    base_url = "http://127.0.0.1:1/v1/"
    api_key = "sk-arl-secret"


def python(code: str, **options) -> Command:
    return Command(argv=[sys.executable, "-S", "-c", code], **options)


def run(agent: Command, env: Env) -> None:
    client: Any = Client()
    asyncio.run(agent.run(env, client, model="m", task=TASK))


def said(code: str, **options) -> str:
    env = Adding(tools=())
    run(python(code, **options), env)
    return env.actions[-1]["content"]


CALL = """
import json, os, urllib.request
def call(**arguments):
    params = {"name": "add", "arguments": arguments}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    types = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    request = urllib.request.Request(os.environ["ARL_MCP_URL"], json.dumps(body).encode(), types)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["result"]["content"][0]["text"]
"""


def test_what_it_is_told():
    told = json.loads(said("import os, json; print(json.dumps(dict(os.environ)))"))
    assert told["OPENAI_BASE_URL"] == "http://127.0.0.1:1/v1"
    assert told["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:1"
    assert told["OPENAI_API_KEY"] == told["ANTHROPIC_API_KEY"] == "sk-arl-secret"
    assert told["ARL_MODEL"] == "m"
    assert "ARL_MCP_URL" not in told  # there are no tools


def test_what_it_is_not_told(monkeypatch):
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "CITY", "OPENAI_ORG_ID"):
        monkeypatch.setenv(name, "parent's")
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    told = json.loads(said(code, env=["CITY", "COLOR=a=b", "EMPTY="]))
    assert (told["CITY"], told["COLOR"], told["EMPTY"]) == ("parent's", "a=b", "")
    # LC_CTYPE: Python itself sets it
    ours = {"PATH", "HOME", "LANG", "CITY", "COLOR", "EMPTY", "TMPDIR", "LC_CTYPE"}
    assert {name for name in told if not name.startswith(("ARL_", "OPENAI_", "ANTHROPIC_"))} <= ours
    assert "OPENAI_ORG_ID" not in told


def test_the_task_file():
    env = Adding()
    run(python("import os; print(open(os.environ['ARL_TASK_FILE']).read())"), env)
    assert json.loads(env.actions[-1]["content"]) == {
        "task_id": "t",
        "messages": [{"role": "user", "content": "2+3? ☃"}],
        "tools": [ADD],
    }


@cases(
    "code, answer",
    [
        ("print(' 5 ')", "5"),
        ("print('thinking'); open(os.environ['ARL_ANSWER_FILE'], 'w').write('5\\n')", "5"),
        ("", ""),
        ("sys.stdout.buffer.write(b'\\xff')", "\ufffd"),
        ("os.mkfifo(os.environ['ARL_ANSWER_FILE']); print(5)", "5"),
    ],
    ids=["stdout", "file", "nothing", "no-utf8", "pipe"],
)
def test_its_final_message_is_the_last_step(code, answer):
    assert said(f"import os, sys; {code}") == answer


def test_a_final_message_too_long_is_its_failure():
    with pytest.raises(AgentError, match="longer than"):
        said("print('x' * (1 << 21))")


def test_its_calls_are_steps():
    env = Adding()
    run(python(CALL + "a = call(a=1, b=1); print(call(a=int(a), b=3))"), env)
    calls = [action["tool_calls"][0]["function"] for action in env.actions[:-1]]
    assert [json.loads(call["arguments"]) for call in calls] == [{"a": 1, "b": 1}, {"a": 2, "b": 3}]
    assert env.actions[-1] == {"role": "assistant", "content": "5"}


def test_calls_at_once_are_steps_one_after_the_other():
    code = "from concurrent.futures import ThreadPoolExecutor as P\n"
    code += "print(sorted(P(8).map(lambda i: call(a=i), range(8))))"
    env = Adding(ends_after=20)
    run(python(CALL + code), env)
    assert len(env.actions) == 9
    assert env.actions[-1]["content"] == str([str(i) for i in range(8)])


def test_it_is_ended_with_its_episode():
    env, start = Adding(ends_after=2), time.monotonic()
    run(python(CALL + "while True: call(a=1)"), env)
    assert len(env.actions) == 2
    assert time.monotonic() - start < 60


def test_a_program_that_fails_is_the_agents_failure():
    with pytest.raises(AgentError, match=r"exit code 3; it said: no luck"):
        run(python("import sys; print('no luck', file=sys.stderr); sys.exit(3)"), Adding())


def test_a_program_that_is_killed_is_the_agents_failure():
    with pytest.raises(AgentError, match="was ended by SIGKILL"):
        run(python("import os; os.kill(os.getpid(), 9)"), Adding())


def test_of_what_a_failed_program_said_the_end_is_kept():
    code = "import sys; sys.stderr.write('x' * (1 << 22) + 'the end'); sys.exit(1)"
    with pytest.raises(AgentError, match="xxxthe end") as raised:
        run(python(code), Adding())
    assert len(str(raised.value)) < 3000


def test_a_step_that_fails_is_not_the_programs_failure():
    with pytest.raises(EnvError, match="planted"):
        run(python(CALL + "call(a=1)"), Adding(fails=True))


def test_a_disk_without_space_is_not_the_programs_failure(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    with pytest.raises(InfraError, match="cannot be given its task"):
        run(python("print(5)"), Adding())


# ---------------------------------------------------------------------- what is left
LASTING = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid} {os.getcwd()}")
"""


def left_of(file: Path) -> list[str]:
    """Those of a LASTING program's processes that live, and its folder if it is there."""
    *pids, folder = file.read_text().split()
    alive = [pid for pid in pids if Path(f"/proc/{pid}").exists() and not is_zombie(pid)]
    return alive + ([folder] if Path(folder).exists() else [])


def wait_for(file: Path) -> None:
    while not (file.exists() and file.read_text()):
        time.sleep(0.02)


def is_zombie(pid: str) -> bool:
    return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()


def nothing_left_of(file: Path) -> bool:
    end = time.monotonic() + 60
    while left_of(file) and time.monotonic() < end:
        time.sleep(0.02)
    return left_of(file) == []


def test_nothing_is_left_of_a_program_that_ends(tmp_path):
    argv = [sys.executable, "-S", "-c", LASTING, str(tmp_path / "pids")]
    run(Command(argv=argv), Adding())
    assert nothing_left_of(tmp_path / "pids")


@pytest.mark.parametrize("num_cancels", [1, 3])
def test_nothing_is_left_of_a_cancelled_episode(tmp_path, num_cancels):
    file = tmp_path / "pids"
    code = LASTING + "\nimport signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    agent = Command(argv=[sys.executable, "-S", "-c", code + "\ntime.sleep(600)", str(file)])

    async def cancelled() -> int:
        before = len(asyncio.all_tasks())
        client: Any = Client()
        playing = asyncio.create_task(agent.run(Adding(), client, model="m", task=TASK))
        await asyncio.to_thread(wait_for, file)
        for _ in range(num_cancels):
            playing.cancel()
            await asyncio.sleep(0.01)
        await asyncio.wait([playing], timeout=60)
        assert playing.cancelled()
        return len(asyncio.all_tasks()) - before

    assert asyncio.run(cancelled()) == 0
    assert nothing_left_of(file)


def test_it_dies_with_the_process_that_started_it(tmp_path):
    """Even where that one is killed; only what the program itself started may stay behind."""
    code = f"""
import os, pathlib, sys
from arl_agents.command.program import Program, Start
start = Start(argv=["/bin/sleep", "600"], cwd=pathlib.Path({str(tmp_path)!r}), env={{}})
program = Program(start, max_bytes=9)
print(program._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid, end = done.stdout.strip(), time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and not is_zombie(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists() or is_zombie(pid)


def test_no_handles_are_left():
    def handles() -> int:
        return len(os.listdir("/proc/self/fd"))

    run(python(CALL + "print(call(a=5))"), Adding())
    before = handles()
    for _ in range(3):
        run(python(CALL + "print(call(a=5))"), Adding())
    assert handles() <= before


def test_a_program_that_left_its_group_does_not_hold_the_episode_up(monkeypatch):
    monkeypatch.setattr(programs, "DRAIN_S", 0.2)
    sleep = "import subprocess; subprocess.Popen(['/bin/sleep', '150'], start_new_session=True)"
    start = time.monotonic()
    assert said(sleep + "; print(5)") == "5"
    assert time.monotonic() - start < 120


# ---------------------------------------------------------------------- the tool server
def test_the_secret_is_asked_for():
    async def ask() -> list[int]:
        async with serving_tools([ADD], Calls()) as url:
            root, _, secret = url.removesuffix("/mcp").rpartition("/")
            wrong = [f"{root}/mcp", f"{root}/{secret[:-1]}/mcp", f"{root}/{'0' * 32}/mcp", root]
            return [await asyncio.to_thread(status, each) for each in wrong]

    assert asyncio.run(ask()) == [404] * 4


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, b"{}", timeout=60) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.slow
def test_an_mcp_client_sees_the_tools_and_hears_the_end():
    from mcp import Client as McpClient

    async def ask():
        calls = Calls()
        async with serving_tools([ADD], calls) as url, McpClient(url) as client:
            (tool,) = (await client.list_tools()).tools
            asking = asyncio.create_task(client.call_tool("add", {"a": 1}))
            asked = await calls.next()
            asked.reply("1")
            first = await asking
            calls.close()
            return tool, first, await client.call_tool("add", {"a": 2})

    tool, first, late = asyncio.run(ask())
    assert (tool.name, tool.input_schema) == ("add", {"type": "object"})
    assert (first.content[0].text, first.is_error) == ("1", False)
    assert (late.content[0].text, late.is_error) == ("error: the episode has ended", True)


def test_calls_that_wait_are_told_of_the_end_and_have_a_limit():
    async def ask() -> list[str]:
        calls = Calls()
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(calls.add("f", "{}")) for _ in range(MAX_WAITING + 1)]
            await asyncio.sleep(0)
            calls.close()
        assert await calls.next() is None
        return [task.result() for task in asked]

    *waited, refused = asyncio.run(ask())
    assert set(waited) == {"error: the episode has ended"}
    assert refused.endswith("calls wait already")


# ---------------------------------------------------------------------- options
@cases(
    "options, message",
    [
        ({"argv": []}, "expected a program"),
        ({"argv": "no-such-program-anywhere"}, "no program 'no-such"),
        ({"argv": ["true", 3]}, "expected a program"),
        ({"argv": "true", "env": "PATH"}, "expected a list"),
        ({"argv": "true", "env": ["NOT_SET_ANYWHERE"]}, "it is not set"),
        ({"argv": "true", "env": ["OPENAI_API_KEY=x"]}, "sets"),
        ({}, "argv"),
    ],
    ids=["empty", "missing", "number", "string", "unset", "ours", "none"],
)
def test_options_that_cannot_be_are_refused_before_anything_starts(options, message):
    with pytest.raises(ConfigError, match=message):
        spec("arl_agents.command:SPEC", kind="agent").make(**options)


def test_files_that_are_named_go_with_the_program(tmp_path, monkeypatch):
    (tmp_path / "my agent.sh").write_text("echo $1 $2")
    monkeypatch.chdir(tmp_path)
    env = Adding(tools=())
    run(Command(argv="sh './my agent.sh' 5 --flag"), env)
    assert env.actions[-1]["content"] == "5 --flag"


# ---------------------------------------------------------------------- whose fault it was
ASK = """
import json, os, urllib.request, urllib.error
body = {"model": "m", "messages": json.load(open(os.environ["ARL_TASK_FILE"]))["messages"]}
if os.environ.get("LONG"):
    body["messages"][0]["content"] = "many " * 5000
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
request = urllib.request.Request(url, json.dumps(body).encode(), headers)
"""
SWALLOWS = "try:\n    urllib.request.urlopen(request)\nexcept urllib.error.HTTPError:\n    print(5)"


def test_a_failed_engine_is_no_reward_even_where_the_program_goes_on(scripted):
    broken = Say(scripted.chat.encode("5"), fail_after=0)
    played = scripted.play(python(ASK + SWALLOWS), [], env=Adding, script=lambda _: broken)
    assert played.outcome is Outcome.INFRA_ERROR


def test_a_program_whose_first_prompt_is_longer_than_the_context_is_no_reward(scripted):
    for last in ("urllib.request.urlopen(request)", SWALLOWS):
        played = scripted.play(python(ASK + last, env=["LONG=1"]), [], env=Adding)
        assert played.outcome is Outcome.TOO_LONG


def test_the_episodes_deadline_ends_the_program(scripted):
    start = time.monotonic()
    played = scripted.play(python("import time; time.sleep(600)"), [], env=Adding, episode_s=1.0)
    assert (played.outcome, played.num_turns) == (Outcome.ABORTED, 0)
    assert time.monotonic() - start < 60
