"""`arl eval --engine litellm` through the real LiteLLM, in whatever Python has it.

That is this one, or the one that ARL_LITELLM_PYTHON names (it holds openai at 2.x). Providers are
servers on loopback: one that speaks OpenAI's API, one that speaks Anthropic's Messages.
"""

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from arl_endpoints.endpoint import LITELLM
from someones_claude import SomeonesClaude
from someones_model import KEY, gold

from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError, install_command
from agentgym_rl.runtime import serving
from tests.exhaustive import REQUIRED
from tests.kit.cases import cases

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
INSTALLED = importlib.util.find_spec("litellm") is not None
PYTHON = os.environ.get("ARL_LITELLM_PYTHON") or (sys.executable if INSTALLED else "")
TREE = os.pathsep.join(
    str(ROOT / name) for name in ("", "envs", "agents", "sandboxes", "extensions")
)
IN_TREE = os.environ | {"PYTHONPATH": TREE, "ANTHROPIC_API_KEY": KEY}
slow = pytest.mark.slow  # LiteLLM takes seconds to import


@pytest.fixture(scope="module")
def python() -> str:
    if not PYTHON:
        required = "litellm" in REQUIRED
        (pytest.fail if required else pytest.skip)(
            "LiteLLM is not installed; ARL_LITELLM_PYTHON may name a Python that has it"
        )
    return PYTHON


@pytest.fixture(scope="module")
def found(python) -> dict:
    """What became of each of the scenarios."""
    ran = subprocess.run(
        [python, str(HERE / "scenarios.py")], env=IN_TREE, capture_output=True, timeout=240
    )
    assert ran.returncode == 0, ran.stderr.decode()[-2000:]
    return json.loads(ran.stdout)


@slow
@pytest.mark.parametrize("name", ["openai", "openai_streams"])
def test_an_openai_model_is_asked_and_counted(found, name):
    result, requests = found[name]["result"], found[name]["requests"]
    assert (result["reward"], result["outcomes"]) == (1.0, {"completed": 4})
    assert (result["prompt_tokens"], result["completion_tokens"]) == (63, 27)
    assert len(requests) == 9 == result["turns"] * 4
    sent = {(r["model"], r["temperature"], r["max_tokens"]) for r in requests}
    assert sent == {("gpt-4o-mini", 1.0, 1024)}
    assert set(found[name]["keys"]) == {f"Bearer {KEY}"}


@slow
@pytest.mark.parametrize("name", ["claude", "claude_streams"])
def test_a_claude_is_asked_in_its_own_words(found, name):
    """The server judges the requests: tools, tool results and roles are Anthropic's."""
    result, requests = found[name]["result"], found[name]["requests"]
    assert (result["reward"], result["outcomes"]) == (1.0, {"completed": 4})
    assert {r["model"] for r in requests} == {"claude-sonnet-4-5"}
    assert requests[0]["tools"][0]["name"] == "calculator"
    assert set(found[name]["keys"]) == {KEY}
    assert (result["prompt_tokens"], result["cached_tokens"]) == (9 * 100, 9 * 80)
    assert result["completion_tokens"] == 9 * 5


@slow
def test_costs_are_litellm_s(found):
    """gpt-4o-mini: $0.15 and $0.60 a million; Sonnet 4.5: $3, $0.30 from the cache, $15."""
    assert found["openai"]["result"]["cost_usd"] == pytest.approx(1e-6 * (63 * 0.15 + 27 * 0.6))
    claude = 9e-6 * (20 * 3 + 80 * 0.3 + 5 * 15)
    assert found["claude"]["result"]["cost_usd"] == pytest.approx(claude)
    assert found["claude_streams"]["result"]["cost_usd"] == pytest.approx(claude)
    assert found["unpriced"]["result"]["cost_usd"] is None


@slow
@cases(
    "name, said",
    [
        ("openai_key", "it answered 401"),
        ("openai_model", "it answered 404"),
        ("claude_key", "it answered 401"),
        ("openai_parameter", "--engine.send=temperature,max_completion_tokens, may do"),
        ("claude_parameter", "does not support parameters: ['seed']"),
        ("provider", "expected --model PROVIDER/NAME"),
        ("no_key", "LiteLLM looks for"),
    ],
)
def test_what_cannot_become_better_ends_it_at_once(found, name, said):
    kind, message = found[name]["error"]
    assert (kind, said in message) == ("ConfigError", True), message
    assert len(found[name]["requests"]) <= 2
    assert KEY not in message


@slow
@cases(
    "name, said",
    [
        ("openai_500", "it answered 500: boom"),
        ("openai_429", "eval.max_concurrent limits the concurrent episodes"),
        ("openai_hangs", "timeout value=0.5"),
        ("openai_no_json", "it answered 500"),
        ("claude_busy", "Overloaded"),
    ],
)
def test_a_failing_endpoint_is_no_reward(found, name, said):
    kind, message = found[name]["error"]
    assert (kind, said in message) == ("InfraError", True), message


@slow
def test_what_may_pass_is_asked_again(found):
    assert found["openai_again"]["result"]["outcomes"] == {"completed": 1}
    assert len(found["openai_again"]["requests"]) == 2


@slow
@pytest.mark.parametrize("name", ["openai_overflow", "claude_overflow"])
def test_an_outgrown_context_is_truncated(found, name):
    outcomes = found[name]["result"]["outcomes"]
    assert outcomes.keys() <= {"completed", "truncated"}
    assert outcomes["truncated"] >= 1
    assert sum(outcomes.values()) == 4


@slow
@pytest.mark.parametrize("name", ["openai_too_long", "claude_too_long"])
def test_prompts_that_never_fit_are_no_reward_of_zero(found, name):
    kind, message = found[name]["error"]
    assert (kind, "all 4 first prompts are too long" in message) == ("ConfigError", True), message


@slow
def test_a_request_it_refuses_is_the_agent_s_error(found):
    kind, message = found["openai_odd"]["error"]
    assert (kind, "agent_error" in message, "messages[3]" in message) == (
        "TooManyErrors",
        True,
        True,
    )


async def _typed(python: str, *argv: str) -> tuple[int, str]:
    async with serving(SomeonesClaude(gold(4)), host="127.0.0.1", port=0) as url:
        process = await asyncio.create_subprocess_exec(
            *(python, "-m", "agentgym_rl", "eval", f"--engine.base_url={url}", *argv),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=IN_TREE,
        )
        async with asyncio.timeout(120):
            out, _ = await process.communicate()
        return process.returncode or 0, out.decode()


@slow
def test_the_summary_as_typed(python):
    parts = ("--env=arl_envs.math.env:MathEnv", "--agent=arl_agents.react:React")
    model = ("--engine=litellm", "--model=anthropic/claude-sonnet-4-5", "--eval.num_tasks=4")
    code, out = asyncio.run(_typed(python, *parts, *model))
    assert code == 0, out
    assert re.search(r"held-out reward +1.000 over 4 tasks", out)
    assert "95 % interval 0.510 to 1.000" in " ".join(out.split())
    assert "cost             $0.00143" in out
    assert KEY not in out


@pytest.mark.skipif(INSTALLED, reason="LiteLLM is installed here")
def test_without_litellm_it_is_said_what_to_install():
    config = load_config(overrides={"engine.type": "litellm", "model.path": "openai/x"})
    with pytest.raises(ConfigError, match=re.escape(install_command("litellm"))):
        asyncio.run(LITELLM.check(config, config.engine))
