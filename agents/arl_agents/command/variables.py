"""The environment variables of a program: those the agent sets, and those passed on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym_rl import ConfigError, Message, ToolSpec

if TYPE_CHECKING:
    from openai import AsyncOpenAI

PASSED = ("PATH", "HOME", "LANG")
"""The variables of this process that are passed on; others may hold secrets."""
EPISODE_VARIABLES = {
    "OPENAI_BASE_URL": "base URL of the model, for OpenAI clients",
    "OPENAI_API_KEY": "the key of this episode's session; it is valid for nothing else",
    "ANTHROPIC_BASE_URL": "the same server, for Anthropic clients",
    "ANTHROPIC_API_KEY": "the same key",
    "ARL_MODEL": "name of the model",
    "ARL_TASK_FILE": "JSON file: task_id, messages (the first ones), tools (OpenAI functions)",
    "ARL_ANSWER_FILE": "path where the program may write the final message",
    "ARL_MCP_URL": "URL of the tools as an MCP server (streamable HTTP), if there are any",
    "TMPDIR": "the working folder of the program; it is removed at the end",
}


def own_variables(named: Sequence[str]) -> dict[str, str]:
    """Return the variables of `named`: "NAME=VALUE" is set, "NAME" is passed on from this process.

    Raises:
        ConfigError: a variable is not set here, or is set by the agent.
    """
    found: dict[str, str] = {}
    for each in named:
        name, given, value = each.partition("=")
        if name in EPISODE_VARIABLES or not name:
            raise ConfigError(
                f"env: got {each!r}; the agent sets {', '.join(EPISODE_VARIABLES)} itself"
            )
        if not given and name not in os.environ:
            raise ConfigError(f"env: {name} cannot be passed on: it is not set")
        found[name] = value if given else os.environ[name]
    return found


def episode_variables(folder: Path, client: AsyncOpenAI, *, model: str) -> dict[str, str]:
    """Return the variables about the episode; `client` has the address of the model."""
    url = str(client.base_url).rstrip("/")
    return {
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": client.api_key,
        "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": client.api_key,
        "ARL_MODEL": model,
        "ARL_TASK_FILE": str(folder / "task.json"),
        "ARL_ANSWER_FILE": str(folder / "answer.txt"),
        "TMPDIR": str(folder),
    }


def variables(
    episode: Mapping[str, str], *, mcp_url: str, own: Mapping[str, str]
) -> dict[str, str]:
    """Return all variables of a program on this machine."""
    passed = {name: os.environ[name] for name in PASSED if name in os.environ}
    mcp = {"ARL_MCP_URL": mcp_url} if mcp_url else {}
    return {**passed, "PATH": search_path(own), **own, **episode, **mcp}


def search_path(own: Mapping[str, str]) -> str:
    """Return PATH; unless `own` sets it, `python` is the interpreter that runs this package."""
    ours = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    return own.get("PATH", ours)


def task_file(*, task_id: str, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bytes:
    """Return the contents of the file that ARL_TASK_FILE names."""
    task = {"task_id": task_id, "messages": list(messages), "tools": list(tools)}
    return json.dumps(task).encode()
