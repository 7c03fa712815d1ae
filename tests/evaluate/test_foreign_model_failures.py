"""What somebody else's endpoint can do wrong: never a reward of 0, and the key is never shown."""

import asyncio
import json

import pytest

from agentgym_rl.core import ConfigError, InfraError, TooManyErrors
from tests.kit.cases import cases
from tests.kit.someones_eval import evaluate, typed
from tests.kit.someones_model import (
    KEY,
    Refusal,
    SomeonesModel,
    failing_first,
    hanging,
    nonsense,
    refusing,
)

pytestmark = pytest.mark.usefixtures("key")

TRUNCATED = b'{"choices": [{"index": 0, "mess'


@cases(
    "say, said",
    [
        (refusing(500, b"<html>boom</html>"), "it answered 500: <html>boom</html>"),
        (refusing(429, {"message": "slow down"}), "it answered 429: slow down"),
        (refusing(200, TRUNCATED), "this is no JSON"),
        (refusing(200, b"[]"), "no JSON object"),
        (refusing(200, b"x" * 17_000_000), "the answer is too large: at most 16,777,216 bytes"),
        (refusing(200, b'{"choices": []}'), "no chat completion"),
        (refusing(200, {"message": "provider down"}), "provider down"),
        (lambda messages: {"content": 5}, r"Expected `str . array . null`, got `int`.*content"),
        (lambda messages: {"content": "5", "finish_reason": "error"}, "it gave the reply up"),
        (lambda messages: {"tool_calls": [{"function": {"arguments": {}}}]}, "function.arguments"),
        (hanging, r"more than 0.3 s \(rollout.turn_timeout_s\)"),
    ],
)
@cases("agent", ["react", "Deaf"])
@pytest.mark.slow
def test_a_failing_endpoint_is_no_reward(say, said, agent):
    name = agent if agent == "react" else f"tests.kit.someones_eval:{agent}"
    with pytest.raises(InfraError, match=said):
        evaluate(say, agent__id=name, rollout__turn_timeout_s=0.3 if say is hanging else 60)


def test_a_silent_attempt_is_bounded():
    with pytest.raises(InfraError, match="Timeout"):
        evaluate(hanging, engine__request_timeout_s=0.2)


def test_an_endpoint_that_is_not_there_is_named():
    with pytest.raises(
        InfraError, match=r"someones/model at http://127.0.0.1:9/v1: .*annot connect"
    ):
        evaluate(nonsense, engine__base_url="http://127.0.0.1:9/v1")


def test_requests_are_sent_again():
    model = SomeonesModel(failing_first(1))
    evaluate(None, model=model, engine__max_retries=1, eval__num_tasks=1)
    assert len(model.requests) == 2


def test_episodes_are_played_again():
    result = evaluate(failing_first(1), rollout__max_retries=1)
    assert result["outcomes"] == {"completed": 4}


def test_the_first_episode_that_cannot_be_played_ends_it():
    model = SomeonesModel(refusing(500))
    with pytest.raises(InfraError):
        evaluate(None, model=model, eval__num_tasks=1000)
    assert len(model.requests) <= 4


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_or_model_ends_it_at_once(status):
    model = SomeonesModel(refusing(status, {"message": f"no: {KEY}", "code": "nope"}))
    with pytest.raises(ConfigError) as caught:
        evaluate(None, model=model, rollout__max_retries=9, eval__num_tasks=1000)
    text = str(caught.value)
    assert all(part in text for part in ("someones/model at http://127", "OPENAI_API_KEY"))
    assert KEY not in text
    assert len(model.requests) <= 4


def test_a_refused_parameter_says_what_to_do():
    body = {"message": "Unsupported parameter", "param": "max_tokens", "code": "unsupported"}
    with pytest.raises(ConfigError, match=r"--engine\.send=temperature,max_completion_tokens, may"):
        evaluate(refusing(400, body))


@pytest.mark.parametrize(
    "body",
    [
        {"message": "too long", "code": "context_length_exceeded"},
        {"message": "This model's maximum context length is 9 tokens.", "code": 400},
    ],
)
def test_an_outgrown_context_is_no_reward_at_first_and_truncates_later(body):
    call = {"id": "c", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}

    def say(messages):
        if messages[-1]["role"] == "tool":
            raise Refusal(400, {"error": body})
        return {"content": None, "tool_calls": [call]}

    found = evaluate(say)
    assert (found["outcomes"], found["outgrown"], found["reward"]) == ({"truncated": 4}, 4, 0.0)

    def only_the_second(messages, asked=[]):  # noqa: B006
        asked.append(messages)
        if len(asked) == 2:
            return {"content": "?"}
        raise Refusal(400, {"error": body})

    found = evaluate(only_the_second)
    assert (found["outcomes"], found["num_tasks"]) == ({"too_long": 3, "completed": 1}, 1)
    with pytest.raises(ConfigError, match=r"all 4 first prompts are too long"):
        evaluate(refusing(400, body))


def test_a_request_the_endpoint_refuses_is_the_agent_s_error():
    with pytest.raises(TooManyErrors, match=r"(?s)messages\[3\] is odd.*4 of 4.*agent_error"):
        evaluate(refusing(400, {"message": "messages[3] is odd", "param": "messages"}))


WITHOUT_TRIAL = {"rollout__trial_s": 0}


def test_options_that_are_no_object_are_the_agent_s_error():
    model = SomeonesModel(nonsense)
    with pytest.raises(TooManyErrors, match=r"(?s)stream_options must be.*4 of 4.*agent_error"):
        evaluate(None, model=model, agent__id="tests.kit.someones_eval:Odd", **WITHOUT_TRIAL)
    assert not model.requests


def test_no_key_is_said_before_anything_is_asked(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    model = SomeonesModel(nonsense)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        evaluate(None, model=model)
    assert evaluate(None, model=model, engine__api_key_env="")["num_tasks"] == 4
    assert KEY not in json.dumps(model.keys)


@pytest.mark.slow
def test_failures_as_typed_show_no_key():
    say = refusing(401, {"message": f"Incorrect API key provided: {KEY}."})
    code, out = asyncio.run(typed(say, "--json"))
    assert (code, KEY in out) == (2, False)
    assert "Incorrect API key provided: [the API key]" in out
    assert "check --model, --engine.base_url and the key in OPENAI_API_KEY" in out
