"""Agents that speak other APIs than chat completions, evaluated on somebody else's model."""

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.exhaustive import REQUIRED
from tests.kit.someones_eval import evaluate
from tests.kit.someones_eval import key as key
from tests.kit.someones_model import SomeonesModel, gold

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("key")]  # programs and SDKs start slowly

PROGRAM = Path(__file__).parent / "claude_program.py"
ONE = {"eval__num_tasks": 1}
SDK = {"agent__id": "openai_agents", "agent__options": {"api": "responses"}}


def is_gold(result, model):
    assert (result["reward"], result["outcomes"]) == (1.0, {"completed": 1}), result
    asked = len(model.requests)
    assert result["turns"] == asked == 1 + result["tool_calls"] > 1
    assert (result["prompt_tokens"], result["completion_tokens"]) == (7 * asked, 3 * asked)
    assert {request["model"] for request in model.requests} == {"someones/model"}


@pytest.mark.parametrize("flags", [[], ["--stream"]], ids=["whole", "streamed"])
def test_a_program_that_speaks_messages(flags):
    pytest.importorskip("anthropic")
    pytest.importorskip("mcp")
    model = SomeonesModel(gold(1))
    argv = [sys.executable, str(PROGRAM), *flags]
    more = {"agent__id": "command", "agent__options": {"argv": argv}}
    is_gold(evaluate(None, model=model, rollout__episode_timeout_s=60, **ONE, **more), model)


def test_an_agents_sdk_that_speaks_responses():
    if importlib.util.find_spec("agents") is None or not importlib.util.find_spec("agents.tool"):
        wanted = "agents" in REQUIRED
        (pytest.fail if wanted else pytest.skip)("openai-agents is not installed")
    model = SomeonesModel(gold(1))
    is_gold(evaluate(None, model=model, **ONE, **SDK), model)
