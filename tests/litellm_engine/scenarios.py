"""Evaluations through LiteLLM, run by whatever Python has it: `python scenarios.py`.

Prints {"name": {"result": ..., "error": ..., "requests": [...], "keys": [...]}} as JSON. The
servers are real ones, on loopback.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "kit"), str(Path(__file__).parent)]

from someones_claude import SomeonesClaude  # noqa: E402
from someones_model import (  # noqa: E402
    KEY,
    Refusal,
    SomeonesModel,
    failing_first,
    gold,
    hanging,
    nonsense,
    refusing,
)

from agentgym_rl.config import load_config  # noqa: E402
from agentgym_rl.core import cause_of  # noqa: E402
from agentgym_rl.evaluate import EvalTarget, evaluate_all  # noqa: E402
from agentgym_rl.report import make_progress  # noqa: E402
from agentgym_rl.runtime import serving  # noqa: E402

QUICK = {
    "engine.type": "litellm",
    "env.id": "arl_envs.math.env:MathEnv",  # by name only where this package is installed
    "agent.id": "arl_agents.react:React",
    "engine.max_retries": 0,
    "eval.num_tasks": 4,
    "eval.max_concurrent": 2,
    "rollout.max_retries": 0,
}
OPENAI, CLAUDE = "openai/gpt-4o-mini", "anthropic/claude-sonnet-4-5"
STREAMING = {"agent.id": "raw_streaming:RawStreaming"}


def claude_refusing(status, kind, message):
    def say(messages):
        raise Refusal(status, (kind, message))

    return say


def after_a_turn(refuse):
    """The right replies, but whatever follows the first one is refused."""
    reply = gold(4)

    def say(messages):
        begun = any(message["role"] == "assistant" for message in messages)
        return (refuse if begun else reply)(messages)

    return say


OUTGROWN = refusing(400, {"message": "This model's maximum context length is 9."})
CLAUDE_OUTGROWN = claude_refusing(400, "invalid_request_error", "prompt is too long: 210000 tokens")


def no_such_parameter(messages):
    raise Refusal(400, {"error": {"message": "Unsupported parameter", "param": "max_tokens"}})


SCENARIOS = {
    "openai": (OPENAI, SomeonesModel(gold(4)), {}),
    "openai_streams": (OPENAI, SomeonesModel(gold(4)), STREAMING),
    "openai_key": (OPENAI, SomeonesModel(refusing(401, {"message": f"bad {KEY}"})), {}),
    "openai_model": (OPENAI, SomeonesModel(refusing(404, {"message": "no such model"})), {}),
    "openai_500": (OPENAI, SomeonesModel(refusing(500, b"boom")), {}),
    "openai_429": (OPENAI, SomeonesModel(refusing(429, {"message": "slow down"})), {}),
    "openai_hangs": (OPENAI, SomeonesModel(hanging), {"engine.request_timeout_s": 0.5}),
    "openai_no_json": (OPENAI, SomeonesModel(refusing(200, b'{"choices": [')), {}),
    "openai_again": (
        OPENAI,
        SomeonesModel(failing_first(1)),
        {"engine.max_retries": 1, "eval.num_tasks": 1},
    ),
    "openai_overflow": (OPENAI, SomeonesModel(after_a_turn(OUTGROWN)), {}),
    "openai_too_long": (OPENAI, SomeonesModel(OUTGROWN), {}),
    "openai_odd": (OPENAI, SomeonesModel(refusing(400, {"message": "messages[3] is odd"})), {}),
    "openai_parameter": (OPENAI, SomeonesModel(no_such_parameter), {}),
    "unpriced": ("openai/nobody-knows-it", SomeonesModel(nonsense), {}),
    "claude": (CLAUDE, SomeonesClaude(gold(4)), {"eval.temperature": 0.5}),
    "claude_streams": (CLAUDE, SomeonesClaude(gold(4)), STREAMING),
    "claude_key": (
        CLAUDE,
        SomeonesClaude(claude_refusing(401, "authentication_error", f"invalid x-api-key {KEY}")),
        {},
    ),
    "claude_overflow": (CLAUDE, SomeonesClaude(after_a_turn(CLAUDE_OUTGROWN)), {}),
    "claude_too_long": (CLAUDE, SomeonesClaude(CLAUDE_OUTGROWN), {}),
    "claude_busy": (
        CLAUDE,
        SomeonesClaude(claude_refusing(529, "overloaded_error", "Overloaded")),
        {},
    ),
    "claude_parameter": (CLAUDE, SomeonesClaude(nonsense), {"engine.send": "seed"}),
    "provider": ("nobody", SomeonesModel(nonsense), {}),
    "no_key": ("gemini/gemini-2.5-pro", SomeonesModel(nonsense), {}),
}


async def play(model: str, server, settings: dict) -> dict:
    async with serving(server, host="127.0.0.1", port=0) as url, asyncio.timeout(60):
        base = url if model.startswith("anthropic/") else f"{url}/v1"
        overrides = QUICK | {"model.path": model, "engine.base_url": base} | settings
        asked = EvalTarget(load_config(overrides=overrides))
        (found,) = await evaluate_all([asked], make_progress("none", total_steps=0))
        return found.report


def outcome(model: str, server, settings: dict) -> dict:
    found: dict = {"result": None, "error": None}
    try:
        found["result"] = asyncio.run(play(model, server, settings))
    except BaseException as error:
        cause = cause_of(error)
        found["error"] = [type(cause).__name__, str(cause)]
    return found | {"requests": server.requests, "keys": server.keys}


if __name__ == "__main__":
    os.environ |= {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY}
    os.environ.pop("GEMINI_API_KEY", None)
    os.environ.pop("GOOGLE_API_KEY", None)
    print(json.dumps({name: outcome(*given) for name, given in SCENARIOS.items()}))
