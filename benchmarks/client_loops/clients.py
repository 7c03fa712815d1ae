"""The clients: how each is started, the replies of its model, and the forks that are expected."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from arl_agents.command.agent import Command

from agentgym_rl import Agent

from .installed import MODULES, npm_path, npm_version, python_of
from .play import Case, call

PROGRAMS = Path(__file__).with_name("programs")
LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look up a word.",
        "parameters": {
            "type": "object",
            "properties": {
                "word": {"type": "string"},
                "limit": {"type": "integer", "default": 5},
            },
            "required": ["word"],
        },
    },
}
EDITS = ("lorem", "ipsum", "dolor", "sit", "amet", "elit")
_TEXT = "\n".join(EDITS) + "\n"
_DONE = "All done ✓."


@dataclass(frozen=True, kw_only=True)
class Client:
    """A client, and a session with it."""

    name: str
    label: str
    version: Callable[[], str]
    """A function that returns the installed version; raises NotInstalled."""
    agent: Callable[[Path], Agent]
    """A function that makes the agent; it may write to the folder."""
    case: Case
    forks: Mapping[str, int] = field(default_factory=dict[str, int])
    """The forks by cause."""
    why: str = ""
    """The reason of the forks."""
    is_short: bool = False
    """Whether the bundled model's context has room for the conversation."""


def _preset(
    name: str, package: str, *, own_tools: bool, program: str = ""
) -> tuple[Callable[[], str], Callable[[Path], Agent]]:
    """Return the version and the agent of a preset of `command` from npm."""

    def agent(_: Path) -> Agent:
        argv = [program] if program else []
        env = [f"PATH={npm_path()}"]
        return Command(preset=name, argv=argv, env=env, own_tools=own_tools)

    return lambda: npm_version(package), agent


def _edits(write: str, read: str, edit: Callable[[str, str], str], show: str) -> list[str]:
    changes = [edit(word, word.upper()) for word in EDITS]
    return [f"I write a file.\n{write}", read, *changes, show, _DONE]


def _cli(
    name: str, label: str, package: str, tool: str, replies: Sequence[str], offered: str
) -> list[Client]:
    """Return two clients: a command line with its own tools, and with only the tools of the
    environment.

    `tool`: one of its own, which only the main conversation has. `offered`: its name for `lookup`.
    """
    version, own = _preset(name, package, own_tools=True)
    shows = "\n".join(word.upper() for word in EDITS)
    first = Client(
        name=name,
        label=f"{label}, its own tools",
        version=version,
        agent=own,
        case=Case(replies=replies, tool=tool, shows=shows),
    )
    _, offering = _preset(name, package, own_tools=False)
    look = lambda **given: call(offered, **given)  # noqa: E731
    asked = [f"I look.\n{look(word='é')}", f"{look(word='b')}\n{look(word='c', limit=3)}", _DONE]
    case = Case(replies=asked, tool=offered, tools=(LOOKUP,), shows="found: {")
    second = replace(first, name=f"{name}-mcp", label=f"{label}, tools over MCP", agent=offering)
    return [first, replace(second, case=case)]


def _commands() -> list[Client]:
    file = "WORK/a.txt"
    claude = _edits(
        call("Write", file_path=file, content=_TEXT),
        call("Read", file_path=file),
        lambda old, new: call("Edit", file_path=file, old_string=old, new_string=new),
        call("Bash", command="cat a.txt", description="Shows the file"),
    )
    codex = [
        "I write a file.\n" + call("exec_command", cmd=f"printf '{_TEXT}' > a.txt"),
        call("exec_command", cmd="tr a-z A-Z < a.txt > b.txt"),
        call("exec_command", cmd="cat b.txt") + "\n" + call("exec_command", cmd="pwd"),
        _DONE,
    ]
    opencode = _edits(
        call("write", filePath=file, content=_TEXT),
        call("read", filePath=file),
        lambda old, new: call("edit", filePath=file, oldString=old, newString=new),
        call("bash", command="cat a.txt", description="Shows the file"),
    )
    qwen = _edits(
        call("write_file", file_path=file, content=_TEXT),
        call("read_file", file_path=file),
        lambda old, new: call("edit", file_path=file, old_string=old, new_string=new),
        call("run_shell_command", command="cat a.txt", is_background=False),
    )
    pi = _edits(
        call("write", path=file, content=_TEXT),
        call("read", path=file),
        lambda old, new: call("edit", path=file, edits=[{"oldText": old, "newText": new}]),
        call("bash", command="cat a.txt"),
    )
    cn = _edits(
        call("Write", filepath=file, content=_TEXT),
        call("Read", filepath=file),
        lambda old, new: call("Edit", file_path=file, old_string=old, new_string=new),
        call("Bash", command=f"cat {file}"),
    )
    patch = "*** Begin Patch\n*** Add File: b.txt\n+LOREM\n*** End Patch"
    patching = [*codex[:1], call("apply_patch", input=patch), *codex[2:]]
    mcp = "mcp__environment__lookup"
    npm = "@anthropic-ai/claude-code"
    return [
        *_cli("claude-code", "Claude Code", npm, "Edit", claude, mcp),
        *_cli("codex", "Codex", "@openai/codex", "exec_command", codex, "lookup"),
        _codex("as installed", codex),
        _codex("as installed, for gpt-5.5", patching, "--model", "gpt-5.5"),
        *_cli("opencode", "opencode", "opencode-ai", "edit", opencode, "environment_lookup"),
        *_cli("qwen-code", "qwen-code", "@qwen-code/qwen-code", "edit", qwen, mcp),
        _cli("pi", "pi", "@mariozechner/pi-coding-agent", "edit", pi, "")[0],
        *_cli("continue", "Continue", "@continuedev/cli", "Edit", cn, "lookup"),
        _mini(),
        _aider(),
    ]


def _codex(how: str, replies: Sequence[str], *more: str) -> Client:
    """Return Codex with the tools that the preset leaves out: a search of the service and, for
    models that it knows by name, an editor whose call is free text."""
    argv = ["codex", "-c", 'web_search="live"', *more]
    return Client(
        name="codex-installed" + ("-gpt" if more else ""),
        label=f"Codex {how}",
        version=lambda: npm_version("@openai/codex"),
        agent=lambda _: Command(
            preset="codex", argv=argv, env=[f"PATH={npm_path()}"], own_tools=True
        ),
        case=Case(replies=replies, tool="exec_command", shows="LOREM"),
    )


def _script(name: str, distribution: str) -> tuple[Callable[[], str], Callable[[Path], Agent]]:
    """Return the version and the agent of a preset whose program comes from PyPI."""

    def agent(_: Path) -> Agent:
        program = Path(python_of(distribution)[0]).with_name(name)
        more = ["--edit-format", "diff"] if name == "aider" else []
        preset = "mini-swe-agent" if name == "mini" else name
        return Command(preset=preset, argv=[str(program), *more], own_tools=True)

    return lambda: python_of(distribution)[1], agent


def _mini() -> Client:
    version, agent = _script("mini", "mini-swe-agent")
    bash = lambda command: call("bash", command=command)  # noqa: E731
    replies = [
        "I write a file.\n" + bash("echo lorem > a.txt"),
        bash("cat a.txt"),
        f"Two at once.\n{bash('ls')}\n{bash('tr a-z A-Z < a.txt')}",
        bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat a.txt"),
    ]
    return Client(
        name="mini-swe-agent",
        label="mini-swe-agent",
        version=version,
        agent=agent,
        case=Case(replies=replies, tool="bash", shows="LOREM"),
    )


def _aider() -> Client:
    version, agent = _script("aider", "aider-chat")
    block = "a.txt\n```\n<<<<<<< SEARCH\n{}=======\n{}\n>>>>>>> REPLACE\n```\n"
    texts = ["I write a file.\n", block.format("", "lorem"), block.format("nowhere\n", "x")]
    first = "\n".join(texts)
    return Client(
        name="aider",
        label="aider",
        version=version,
        agent=agent,
        case=Case(replies=[first, _DONE], shows="SearchReplaceNoExactMatch"),
        forks={"forks_history_edit": 1},
        why="sends its rules with the newest message only, and takes them out of earlier ones",
    )


def _calculate(expression: str) -> str:
    return call("calculator", expression=expression)


def _talk(first: str = "I multiply.\n") -> list[str]:
    both = call("calculator", expression="1+1", digits=3)
    return [
        first + _calculate("57*22"),
        "It is \\boxed{1254} ✓.",
        f"{_calculate('490-137')}\n{both}",
        "It is \\boxed{353}.",
    ]


def _python(
    file: str,
    distribution: str,
    *arguments: str,
    needs: Sequence[str] = (),
    env: Sequence[str] = (),
) -> tuple[Callable[[], str], Callable[[Path], Agent]]:
    """Return the version and the agent of a program of `PROGRAMS` in Python."""

    def agent(_: Path) -> Agent:
        python, _version = python_of(distribution, *needs)
        argv = [python, str(PROGRAMS / file), *arguments]
        return Command(argv=argv, mcp=False, env=["LITELLM_LOCAL_MODEL_COST_MAP=True", *env])

    return lambda: python_of(distribution, *needs)[1], agent


def _framework(name: str, label: str, made: Any, **fields: Any) -> Client:
    version, agent = made
    fields.setdefault("case", Case(replies=_talk(), shows="490-137 = 7, 2 ✓"))
    return Client(name=name, label=label, version=version, agent=agent, **fields)


def _node(*arguments: str) -> tuple[Callable[[], str], Callable[[Path], Agent]]:
    """Return the version and the agent of the program in JavaScript."""

    def agent(folder: Path) -> Agent:
        (folder / "node_modules").symlink_to(MODULES)
        program = shutil.copy(PROGRAMS / "ai_sdk.mjs", folder)
        argv = ["node", program, *arguments]
        return Command(argv=argv, mcp=False, env=[f"PATH={npm_path()}"])

    return lambda: npm_version("ai"), agent


def _smolagents(kind: str) -> Client:
    final = lambda answer: call("final_answer", answer=answer)  # noqa: E731
    talk = _talk(first="")
    code = ["print(calculator('57*22'))", "final_answer('1254')", "print(calculator('490-137'))"]
    written = [f"Thought: I know.\n<code>\n{each}\n</code>" for each in code]
    last = "<code>\nfinal_answer('353')\n</code>"
    calls = [talk[0], final("1254"), talk[2], final("353")]
    is_code = kind == "code"
    return _framework(
        f"smolagents{'-code' if is_code else ''}",
        f"smolagents, {'CodeAgent' if is_code else 'ToolCallingAgent'}",
        _python("smolagents_agent.py", "smolagents", *([kind] if is_code else [])),
        case=Case(replies=[*written, last] if is_code else calls, shows="Observation:\n"),
        forks={"forks_history_edit": 3},
        why="writes each reply anew as text (`Calling tools: [...]`): a row for each turn",
    )


def _dspy() -> Client:
    def step(tool: str, **arguments: str) -> str:
        parts = {"next_thought": "I go on.", "next_tool_name": tool}
        fields = {**parts, "next_tool_args": json.dumps(arguments)}
        return _dspy_fields(fields)

    last = _dspy_fields({"reasoning": "I know.", "answer": "1254"})
    replies = [step("calculator", expression="57*22"), step("finish"), last]
    return _framework(
        "dspy",
        "DSPy, ReAct",
        _python("dspy_agent.py", "dspy"),
        case=Case(replies=replies * 2, shows="57*22 = 5, 2 ✓"),
        forks={"forks_summary": 4, "forks_new_root": 1},
        why="writes its steps into one user message: a row for each turn; the answer is asked for "
        "with other system text",
    )


def _dspy_fields(fields: Mapping[str, str]) -> str:
    texts = [f"[[ ## {name} ## ]]\n{text}" for name, text in fields.items()]
    return "\n\n".join([*texts, "[[ ## completed ## ]]"])


def _frameworks() -> list[Client]:
    answers = [call("Answer", number=7), call("Answer", number=8, digits=3)]
    quiet = ("CREWAI_DISABLE_TELEMETRY=true", "OTEL_SDK_DISABLED=true")
    dropped = {"forks_history_edit": 2}
    return [
        _framework(
            "pydantic-ai", "Pydantic AI", _python("pydantic_ai_agent.py", "pydantic-ai-slim",
            needs=["pydantic-ai-slim[openai]"]), is_short=True,
        ),
        _framework(
            "pydantic-ai-responses", "Pydantic AI, Responses",
            _python("pydantic_ai_agent.py", "pydantic-ai-slim", "responses"), is_short=True,
        ),
        _framework(
            "instructor", "instructor", _python("instructor_client.py", "instructor"),
            case=Case(replies=answers, shows="the number must be even"), is_short=True,
        ),
        _smolagents("tools"),
        _smolagents("code"),
        _dspy(),
        _framework(
            "llama-index", "LlamaIndex", _python("llama_index_agent.py", "llama-index-core",
            needs=["llama-index-core", "llama-index-llms-openai-like"]), is_short=True,
        ),
        _framework(
            "autogen", "AutoGen", _python("autogen_agent.py", "autogen-agentchat",
            needs=["autogen-agentchat", "autogen-ext[openai]"]), is_short=True,
        ),
        _framework(
            "google-adk", "Google ADK", _python("adk_agent.py", "google-adk",
            needs=["google-adk", "litellm"]), is_short=True,
        ),
        _framework(
            "crewai", "CrewAI, two tasks", _python("crewai_agent.py", "crewai", env=quiet),
            forks=dropped,
            why="a conversation for each task; drops the text beside a call",
        ),
        _framework(
            "strands", "Strands Agents", _python("strands_agent.py", "strands-agents",
            needs=["strands-agents[openai]"]), is_short=True,
        ),
        _framework(
            "haystack", "Haystack", _python("haystack_agent.py", "haystack-ai"), is_short=True
        ),
        _framework("ai-sdk", "Vercel AI SDK", _node(), is_short=True),
        _framework("ai-sdk-stream", "Vercel AI SDK, streamed", _node("stream"), is_short=True),
        _framework(
            "ai-sdk-unstored", "Vercel AI SDK, Responses, `store: false`",
            _node("responses", "unstored"), is_short=True,
        ),
        _framework(
            "ai-sdk-responses", "Vercel AI SDK, Responses", _node("responses"), is_short=True,
        ),
    ]  # fmt: skip


CLIENTS: Mapping[str, Client] = {it.name: it for it in [*_commands(), *_frameworks()]}
