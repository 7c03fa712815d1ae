"""Every Python block of the documents runs, after what the words around it say is there."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgym_rl.core import SandboxUnavailable
from agentgym_rl.models.resolve import BUNDLED
from tests.docs.blocks import Block, blocks
from tests.e2e.forked import share_fork_server
from tests.kit.cases import cases

# Blocks with these words ask a server: tests/gateway/test_lineages.py has a session of the gateway,
# tests/engines/embedded/test_completions.py an engine.
ELSEWHERE = ("session.reward(", "client.completions.create(")
BLOCKS = [block for block in blocks("python") if not any(it in block.text for it in ELSEWHERE)]

# What a reader has beside a page: modules, rows, a server of MCP.
FILES = {
    "my_module.py": "def score(text):\n    return float(text == '42')\n",
    "mine.py": "def score(completion, row):\n    return 1.0\n",
    "rows.jsonl": '{"prompt": "What is 6 * 7?"}\n' * 20,
    "good.jsonl": json.dumps(
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]}
        | {"tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}]}
    )
    + "\n",
    "server.py": "",
    "library.py": next(it.text for it in blocks("python", "docs/my-environment.md")),
}
# Its stand-in is not downloaded.
MODELS = {"Qwen/Qwen3-0.6B": str(BUNDLED)}


async def a_call_and_its_answer() -> dict[str, Any]:
    from arl_agents.bridge import EnvTools

    import agentgym_rl

    env = agentgym_rl.make("math-v0")
    await env.reset(seed=1)
    call = {"name": "calculator", "arguments": '{"expression": "6*7"}'}
    calls = [{"id": "call_1", "type": "function", "function": call}]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return {"EnvTools": EnvTools, "env": env, "message": message, "call_id": "call_1"}


async def an_environment_that_asks_the_pool() -> dict[str, Any]:
    from types import SimpleNamespace

    from agentgym_rl.gym import Verifier

    return {
        "Verifier": Verifier,
        "self": SimpleNamespace(),
        "options": {},
        "text": "42",
    }


async def the_package() -> dict[str, Any]:
    import agentgym_rl

    return {"agentgym_rl": agentgym_rl, "make": agentgym_rl.make}


AROUND: dict[str, Callable[[], Any]] = {
    "EnvTools(env)": a_call_and_its_answer,
    "Verifier(": an_environment_that_asks_the_pool,
    "": the_package,
}


def check(names: dict[str, Any]) -> None:
    """What a page promises of the names that its block leaves."""
    if "called" in names:
        assert (names["called"].status, names["called"].value) == ("done", 1.0)
    if "call_id" in names:
        assert names["tools"].answer("call_1") == "42"
        assert not names["tools"].ended


@pytest.mark.slow
@cases("block", BLOCKS, ids=str)
def test_a_block_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    share_fork_server(monkeypatch)
    asyncio.run(run(block))
    for name in ("my_module", "mine", "library"):
        sys.modules.pop(name, None)


async def run(block: Block) -> None:
    """As in Python's asyncio prompt: `await` needs no function around it."""
    text = block.text
    for name, instead in MODELS.items():
        text = text.replace(name, instead)
    around = next(found for words, found in AROUND.items() if words in text)
    names = {"__name__": "shown"} | await around()
    code = compile(text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    try:
        async with asyncio.timeout(60):
            ran = eval(code, names)
            if inspect.isawaitable(ran):
                await ran
        check(names)
    except SandboxUnavailable as missing:
        pytest.skip(str(missing))
    finally:
        for name in ("env", "self"):
            held = getattr(names.get(name), "verifier", None) if name == "self" else names.get(name)
            if held is not None:
                await held.close()


def test_a_block_that_is_wrong_fails():
    wrong = Block("docs/none.md", 1, "python", "await agentgym_rl.make('math-v0').resets()\n")
    with pytest.raises(AttributeError):
        asyncio.run(run(wrong))
