"""`arl eval --engine openai` against SomeonesModel, and agents with unusual requests."""

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import pytest
from arl_agents.react import React

from agentgym_rl import Agent
from agentgym_rl.config import Config, load_config
from agentgym_rl.core import cause_of
from agentgym_rl.evaluate import EvalTarget, evaluate_all
from agentgym_rl.report import make_progress
from agentgym_rl.runtime import serving
from tests.kit.someones_model import KEY, SomeonesModel

QUICK = {
    "engine.type": "openai",
    "engine.max_retries": 0,
    "model.path": "someones/model",
    "eval.num_tasks": 4,
    "eval.max_concurrent": 2,
    "rollout.max_retries": 0,
}


class Streaming(Agent):
    """An agent that requests streams, as some agents do."""

    async def run(self, env, client, *, model, task):
        messages, _ = await env.reset()
        async with client.chat.completions.stream(
            model=model, messages=messages, tools=list(env.tools)
        ) as stream:
            reply = (await stream.get_final_completion()).choices[0].message
        calls = [call.model_dump() for call in reply.tool_calls or ()]
        await env.step({"role": "assistant", "content": reply.content, "tool_calls": calls})


class Deaf(Agent):
    """An agent that ignores the model and answers itself."""

    async def run(self, env, client, *, model, task):
        messages, _ = await env.reset()
        with contextlib.suppress(Exception):
            await client.chat.completions.create(model="other", messages=messages, max_tokens=5)
        await env.step({"role": "assistant", "content": "\\boxed{1}"})


class Wordy(React):
    """An agent that requests other sampling than the session's."""

    async def run(self, env, client, *, model, task):
        messages, _ = await env.reset()
        await client.chat.completions.create(
            model="other", messages=messages, temperature=0.1, max_tokens=5, top_p=0.5
        )


class Odd(Agent):
    """An agent whose request has a malformed option."""

    async def run(self, env, client, *, model, task):
        messages, _ = await env.reset()
        await client.chat.completions.create(
            model=model, messages=messages, stream=True, stream_options="x"
        )


async def report_of(config: Config, *, out: Path | None = None) -> dict:
    (found,) = await evaluate_all(
        [EvalTarget(config)], make_progress("none", total_steps=0), out=out
    )
    return found.report


async def _evaluate(model: SomeonesModel, settings: dict, out: Path | None, port: int) -> dict:
    async with serving(model, host="127.0.0.1", port=port) as url, asyncio.timeout(240):
        overrides = QUICK | {"engine.base_url": f"{url}/v1"} | settings
        return await report_of(load_config(overrides=overrides), out=out)


def evaluate(
    say, *, model: SomeonesModel | None = None, out: Path | None = None, port: int = 0, **settings
) -> dict:
    """Run the evaluation; `section__key=value` are settings."""
    named = {key.replace("__", "."): value for key, value in settings.items()}
    try:
        return asyncio.run(_evaluate(model or SomeonesModel(say), named, out, port))
    except BaseExceptionGroup as group:
        raise cause_of(group) from group


async def _arl(*argv: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentgym_rl", *argv),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | {"OPENAI_LOG": "debug"},
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def typed(say, *argv: str) -> tuple[int, str]:
    async with serving(SomeonesModel(say), host="127.0.0.1", port=0) as url, asyncio.timeout(240):
        flags = [f"--{key}={value}" for key, value in QUICK.items()]
        more = [f"--engine.base_url={url}/v1", "--logging.level=debug", "--env=math"]
        return await _arl("eval", *flags, *more, *argv)


@pytest.fixture
def key(monkeypatch):
    """Set the API key of a foreign endpoint, where `arl eval` looks for it."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
