"""The presets of `command`, with a stand-in for each program: what it is started with."""

from __future__ import annotations

import asyncio
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from arl_agents.command.agent import Command
from arl_agents.command.presets import PRESETS

from agentgym_rl.core import ConfigError, Task
from agentgym_rl.gym import Env, Step, make_agent, spec
from tests.kit.cases import cases

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
STAND_IN = """#!/usr/bin/env python3
import json, os, sys
home = os.environ["HOME"]
files = {}
for folder, _, names in os.walk(home):
    for name in names:
        path = os.path.join(folder, name)
        files[os.path.relpath(path, home)] = open(path).read()
told = {"argv": sys.argv[1:], "stdin": sys.stdin.read(), "env": dict(os.environ), "files": files}
told["cwd"] = os.getcwd()
open(os.environ["ARL_ANSWER_FILE"], "w").write(json.dumps(told))
"""


class Asking(Env):
    """Asks, and takes the answer."""

    def __init__(self, tools=(TOOL,)) -> None:
        self.tools, self.said = tools, ""

    async def reset(self, *, seed=None, options=None):
        system = {"role": "system", "content": "Be brief."}
        return [system, {"role": "user", "content": "--what is 2+3? ☃"}], {}

    async def step(self, action):
        self.said = action["content"]
        return Step([], 0.0, True, False, {})


class Client:
    """What is read of an OpenAI client."""

    base_url = "http://127.0.0.1:1/v1/"
    api_key = "sk-arl-secret"


@pytest.fixture
def stand_in(tmp_path):
    """A function that makes a program of some lines; returns its path."""

    def make(text: str = STAND_IN) -> str:
        file = tmp_path / "program"
        file.write_text(text)
        file.chmod(0o755)
        return str(file)

    return make


def started(preset: str, program: str, *, tools=(TOOL,), **options: Any) -> str:
    """What a preset's program says in the end."""
    options.setdefault("own_tools", not PRESETS[preset].takes_mcp)
    client: Any = Client()
    env = Asking(tools)
    agent = make_agent(f"command:{preset}", argv=[program, "--more"], **options)
    asyncio.run(agent.run(env, client, model="the-model", task=Task("t", 0)))
    return env.said


@cases("preset", PRESETS)
def test_a_program_is_told_all_that_it_needs(preset, stand_in, monkeypatch):
    monkeypatch.setenv("HOME", "/home/of-the-user")
    told = json.loads(started(preset, stand_in()))
    given = json.dumps([told["argv"], told["files"], told["env"]], ensure_ascii=False)
    for needed in ("the-model", "http://127.0.0.1:1", "sk-arl-secret"):
        assert needed in given
    asked = "Be brief.\n\n--what is 2+3? ☃"
    assert told["stdin"] == asked or asked in told["argv"][-1]
    assert "--more" in told["argv"]
    assert "/home/of-the-user" not in given
    assert told["env"]["HOME"].endswith("/home")
    assert told["cwd"].endswith("/work")


@cases("preset", [name for name, preset in PRESETS.items() if preset.takes_mcp])
def test_the_environments_tools_are_offered_over_mcp(preset, stand_in):
    told = json.loads(started(preset, stand_in()))
    url = told["env"]["ARL_MCP_URL"]
    assert url in json.dumps([told["argv"], told["files"]])
    told = json.loads(started(preset, stand_in(), tools=()))
    assert "/mcp" not in json.dumps([told["argv"], told["files"]])


@cases("preset", [name for name, preset in PRESETS.items() if preset.takes_mcp])
def test_its_own_tools_are_off_unless_they_are_wanted(preset, stand_in):
    given = []
    for own_tools in (False, True):
        told = json.loads(started(preset, stand_in(), tools=(), own_tools=own_tools))
        home = told["env"]["HOME"]
        given.append(json.dumps([told["argv"], told["files"]]).replace(home, ""))
    assert given[0] != given[1]


def test_the_configuration_of_codex_is_toml(stand_in):
    told = json.loads(started("codex", stand_in()))
    config = tomllib.loads(told["files"][".codex/config.toml"])
    assert config["model_providers"][config["model_provider"]]["wire_api"] == "responses"
    assert config["mcp_servers"]["environment"]["url"] == told["env"]["ARL_MCP_URL"]


def test_a_variable_of_the_users_has_priority(stand_in):
    told = json.loads(started("claude-code", stand_in(), env=["ENABLE_TOOL_SEARCH=true"]))
    assert told["env"]["ENABLE_TOOL_SEARCH"] == "true"


def test_the_last_text_of_opencode_is_the_answer(stand_in):
    events = [
        {"type": "text", "part": {"text": "I look."}},
        {"type": "tool_use", "part": {"tool": "add"}},
        {"type": "text", "part": {"text": "It is 5."}},
        {"type": "step_finish"},
    ]
    lines = "\n".join(["noise", *map(json.dumps, events)])
    assert started("opencode", stand_in(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n")) == "It is 5."


def test_the_submission_of_mini_swe_agent_is_the_answer(stand_in):
    info = json.dumps({"info": {"submission": "5\n"}})
    text = f"#!/bin/sh\necho noise\ncat > $HOME/trajectory.json <<'END'\n{info}\nEND\n"
    assert started("mini-swe-agent", stand_in(text)) == "5"
    assert started("mini-swe-agent", stand_in("#!/bin/sh\necho noise")) == ""


@cases(
    "options, message",
    [
        ({"preset": "claude"}, "expected one of claude-code"),
        ({"preset": "pi"}, "own_tools=true"),
        ({"preset": "codex", "argv": ["no-such-program"]}, "npm install --global @openai/codex"),
    ],
    ids=["unknown", "no way", "missing"],
)
def test_a_preset_that_cannot_be_is_refused_before_anything_starts(options, message):
    with pytest.raises(ConfigError, match=message):
        Command(**options)


def test_a_preset_is_part_of_the_agents_id():
    found = spec("command:codex", kind="agent")
    assert (found.id, found.kwargs) == ("command:codex", {"preset": "codex"})
    with pytest.raises(ConfigError, match="own_tools=true"):
        make_agent("command:pi")


def test_the_files_of_a_program_are_removed(stand_in):
    told = json.loads(started("codex", stand_in()))
    assert not Path(told["cwd"]).parent.exists()
