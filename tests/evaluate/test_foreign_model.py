"""`arl eval --engine openai`: any model behind a URL, through the same environments and agents."""

import asyncio
import json
import os
import re
from pathlib import Path

import pytest
from arl_endpoints.odd_replies import oddity
from arl_envs.math.env import MathEnv
from arl_envs.math.oracle import solve

from agentgym_rl import Env, Step
from agentgym_rl.config import GatewayConfig, load_config
from agentgym_rl.core import ConfigError, InfraError, TooManyErrors
from agentgym_rl.engines.scripted import ScriptedEngine
from agentgym_rl.evaluate import EvalTarget, evaluate_all
from agentgym_rl.gateway import ChatFormat, Gateway, SessionSampling
from agentgym_rl.gym import make_sandbox
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.report import make_progress
from tests.kit.cases import cases
from tests.kit.someones_eval import QUICK, evaluate, report_of, typed
from tests.kit.someones_model import KEY, Refusal, SomeonesModel, gold, nonsense

pytestmark = pytest.mark.usefixtures("key")


def test_a_perfect_model_gets_everything():
    model = SomeonesModel(gold(4))
    result = evaluate(None, model=model)
    assert (result["reward"], result["num_tasks"], result["versions"]) == (1.0, 4, ())
    assert result["outcomes"] == {"completed": 4}
    assert result["turns"] * 4 == len(model.requests) == 4 + result["tool_calls"] * 4
    asked = len(model.requests)
    assert (result["prompt_tokens"], result["completion_tokens"]) == (7 * asked, 3 * asked)
    assert set(model.keys) == {f"Bearer {KEY}"}


def test_nonsense_gets_nothing():
    result = evaluate(nonsense)
    assert (result["reward"], result["outcomes"]) == (0.0, {"completed": 4})


def test_the_session_s_sampling_is_sent():
    model = SomeonesModel(nonsense)
    evaluate(None, model=model, eval__temperature=0.3, rollout__max_tokens=99)
    sent = {(r["model"], r["temperature"], r["max_tokens"]) for r in model.requests}
    assert sent == {("someones/model", 0.3, 99)}
    assert not {"seed", "max_completion_tokens"} & set(model.requests[0])


def test_what_a_model_refuses_can_be_left_out_or_renamed():
    model = SomeonesModel(nonsense)
    more = {"engine__extra_body": {"reasoning_effort": "low"}}
    evaluate(None, model=model, engine__send="max_completion_tokens,seed", **more)
    (first, *rest) = model.requests
    assert (first["max_completion_tokens"], first["reasoning_effort"]) == (1024, "low")
    assert not {"temperature", "max_tokens"} & set(first)
    assert len({request["seed"] for request in (first, *rest)}) == 4


def test_an_agent_s_own_sampling_is_below_the_session_s():
    model = SomeonesModel(nonsense)
    evaluate(None, model=model, agent__id="tests.kit.someones_eval:Wordy")
    first = model.requests[0]
    assert (first["temperature"], first["max_tokens"], first["top_p"]) == (1.0, 5, 0.5)
    assert first["model"] == "someones/model"


def test_streams_are_passed_on_and_counted():
    result = evaluate(gold(4), agent__id="tests.kit.someones_eval:Streaming")
    assert (result["turns"], result["tool_calls"]) == (1.0, 1.0)
    assert (result["prompt_tokens"], result["completion_tokens"]) == (28, 12)
    result = evaluate(nonsense, agent__id="tests.kit.someones_eval:Streaming")
    assert result["outcomes"] == {"completed": 4}


def test_a_stream_without_an_end_is_infrastructure():
    model = SomeonesModel(nonsense, finish_reason=None)
    with pytest.raises(InfraError, match="without a finish_reason"):
        evaluate(None, model=model, agent__id="tests.kit.someones_eval:Streaming")


class Runs(Env):
    """The reply is a program; its exit decides."""

    needs_sandboxes = True

    async def reset(self, *, seed=None, options=None):
        self.sandboxes = options["sandboxes"]
        return [{"role": "user", "content": "Write a program."}], {}

    async def step(self, action):
        async with await self.sandboxes.create() as sandbox:
            result = await sandbox.run_python(action["content"])
        return Step([], float(result.ok), True, False, {})


@pytest.mark.slow
def test_sandboxes_run_and_are_counted():
    if not asyncio.run(make_sandbox("local").probe()).ok:
        pytest.skip("no local sandboxes here")
    replies = iter(["print(1)", "1/0", "pass", "pass"])
    say = {"env__id": f"{__name__}:Runs", "agent__id": "single_turn"}
    result = evaluate(lambda messages: {"content": next(replies)}, **say)
    assert result["reward"] == 0.75
    assert result["sandbox"]["programs"] == 4
    assert result["sandbox"]["statuses"] == {"ok": 3, "error": 1}


class Judged(Env):
    """The reply is a number; a verifier of the run's pool decides whether it is 1."""

    uses_verifier = True

    async def reset(self, *, seed=None, options=None):
        self.verifier = options["verifier"]
        return [{"role": "user", "content": "Say 1."}], {}

    async def step(self, action):
        called = await self.verifier.call("operator:eq", action["content"], "1")
        return Step([], float(called.value), True, False, {"verifier": called.status})


def test_the_run_s_verifiers_judge_and_are_counted():
    replies = iter("1213")
    say = {"env__id": f"{__name__}:Judged", "agent__id": "single_turn"}
    result = evaluate(lambda messages: {"content": next(replies)}, **say)
    assert result["reward"] == 0.5
    assert (result["verifier"]["calls"], result["verifier"]["statuses"]) == (4, {"done": 4})
    assert result["verifier"]["queue_ms"]["max"] >= result["verifier"]["queue_ms"]["mean"] > 0


IN_TEXT = {
    "hermes": '<tool_call>{"name": "calculator", "arguments": {"expression": "1+1"}}</tool_call>',
    "not closed": '<tool_call>{"name": "calculator", "arguments": {"expression": "1+1"}}',
    "no object": "<tool_call>calculator(1+1)</tool_call>",
    "xml": "<tool_call>\n<function=calculator>\n<parameter=expression>\n1+1\n</parameter>\n"
    "</function>\n</tool_call>",
    "mistral": '[TOOL_CALLS][{"name": "calculator", "arguments": {"expression": "1+1"}}]',
    "llama": '{"name": "calculator", "parameters": {"expression": "1+1"}}',
    "pythonic": '[calculator(expression="1+1")]',
    "fenced": 'I add.\n```json\n{"name": "calculator", "arguments": {}}\n```',
    "a dictionary": "{'name': 'calculator', 'arguments': {'expression': '1+1'}}",
    "bare xml": "<function=calculator><parameter=expression>1+1</parameter></function>",
    "gemma": "```tool_code\nprint(calculator(expression='1+1'))\n```",
    "react": "I add.\nAction: calculator\nAction Input: 1+1",
}


OFFER = {"tools": [{"type": "function", "function": {"name": "calculator"}}]}


@cases("form", IN_TEXT)
def test_calls_are_found_in_texts(form):
    reply = {"content": IN_TEXT[form]}
    assert oddity(OFFER, reply, "stop") == "text_calls"
    assert oddity(OFFER | {"tool_choice": "none"}, reply, "stop") is None
    assert oddity({}, reply, "stop") is None
    assert oddity(OFFER, reply, "SAFETY") == "filtered_turns"
    assert oddity(OFFER, reply | {"tool_calls": [{}]}, "tool_calls") is None


@cases("reply", [{"content": "I add."}, {"content": "", "function_call": {"name": "calculator"}}])
def test_a_call_that_the_server_lost_is_found(reply):
    assert oddity(OFFER, reply, "tool_calls") == "text_calls"
    assert oddity({}, reply, "tool_calls") in (None, "empty_turns")


@cases("said", ["The calculator says 2.", 'Call it {"expression": "1+1"}.', "[1, 2]", "<b>2</b>"])
def test_other_texts_are_no_calls(said):
    assert oddity(OFFER, {"content": said}, "stop") is None
    assert oddity(OFFER, {"content": None, "refusal": said}, "stop") is None


@pytest.mark.parametrize("agent", ["react", "tests.kit.someones_eval:Streaming"])
def test_calls_in_the_text_are_said(caplog, agent):
    result = evaluate(lambda messages: {"content": IN_TEXT["hermes"]}, agent__id=agent)
    assert (result["text_calls"], result["tool_calls"], result["empty_turns"]) == (4, 0, 0)
    first, *_, last = [r.getMessage() for r in caplog.records if "tool call" in r.getMessage()]
    assert "vLLM: --enable-auto-tool-choice" in first
    assert last.startswith("4 of 4 replies had a tool call in their text")


class Thoughtful(Env):
    """The thoughts of the reply are paid."""

    async def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": "Think."}], {}

    async def step(self, action):
        return Step([], float(action.get("reasoning_content") == "Hm."), True, False, {})


@pytest.mark.parametrize("agent", ["react", "single_turn", "swe"])
def test_the_environment_gets_the_thoughts(agent):
    say = {"env__id": f"{__name__}:Thoughtful", "agent__id": agent, "eval__num_tasks": 1}
    reply = {"content": "4", "reasoning_content": "Hm."}
    assert evaluate(lambda messages: reply, **say)["reward"] == 1.0


@cases(
    "message",
    [
        {"content": None, "reasoning_content": "So \\boxed{2}."},
        {"content": "", "reasoning": "So 2."},
        {"content": "<think>So 2.</think>"},
        {"content": "<think>So 2, or"},
        {"content": " "},
    ],
    ids=range(5),
)
def test_replies_that_say_nothing_are_said(caplog, message):
    caplog.clear()
    result = evaluate(lambda messages: message)
    assert (result["empty_turns"], result["text_calls"]) == (4, 0)
    assert "4 of 4 replies had neither text nor calls" in caplog.text


def test_an_evaluation_of_withheld_replies_is_no_result(caplog):
    with pytest.raises(TooManyErrors, match="in 4 of 4 evaluation episodes replies were withheld"):
        evaluate(None, model=SomeonesModel(nonsense, finish_reason="content_filter"))
    replies = iter(["content_filter", *["stop"] * 9])
    say = lambda messages: {"content": "2", "finish_reason": next(replies)}  # noqa: E731
    result = evaluate(say, eval__num_tasks=10)
    assert (result["filtered_turns"], result["num_episodes"]) == (1, 10)
    assert "1 of 10 replies were withheld" in caplog.text


FLAGGED = {
    "azure": (400, {"code": "content_filter", "message": "Filtered.", "param": "prompt"}),
    "azure, inner": (
        400,
        {"code": "400", "message": "?", "innererror": {"code": "ResponsibleAIPolicyViolation"}},
    ),
    "openai": (400, {"code": "content_policy_violation", "type": "image_generation_user_error"}),
    "openai, prompt": (400, {"code": "invalid_prompt", "message": "Your prompt was flagged."}),
    "moonshot": (400, {"type": "content_filter", "message": "considered high risk"}),
    "anthropic": (
        400,
        {
            "type": "invalid_request_error",
            "message": "Output blocked by content filtering policy",
        },
    ),
    "openrouter": (403, {"code": 403, "message": "?", "metadata": {"flagged_input": "Say"}}),
    "in the body": (200, {"code": "content_filter", "message": "Filtered."}),
}


@cases("kind", FLAGGED)
@pytest.mark.parametrize("agent", ["react", "tests.kit.someones_eval:Streaming"])
def test_an_error_in_place_of_a_withheld_reply_is_no_error_of_the_agent_s(kind, agent, caplog):
    caplog.clear()
    status, error = FLAGGED[kind]
    body = {"error": error}
    if status == 200 and agent != "react":  # an event of the stream
        body = f"data: {json.dumps(body)}\n\n".encode()
    withheld = iter([True, *[False] * 9])

    def say(messages):
        if next(withheld):
            raise Refusal(status, body)
        return {"content": "2"}

    result = evaluate(say, eval__num_tasks=10, agent__id=agent)
    assert (result["filtered_turns"], result["num_episodes"]) == (1, 10)
    assert (result["outcomes"]["truncated"], result["outcomes"]["completed"]) == (1, 9)
    assert "1 of 10 replies were withheld" in caplog.text


def test_an_evaluation_of_errors_of_a_filter_is_no_result():
    status, body = FLAGGED["azure"]
    with pytest.raises(TooManyErrors, match="in 4 of 4 evaluation episodes replies were withheld"):
        evaluate(lambda messages: _refuse(status, {"error": body}))


def test_another_refusal_is_the_agent_s_error():
    with pytest.raises(TooManyErrors, match="agent_error"):
        evaluate(lambda messages: _refuse(400, {"error": {"message": "no content filter here"}}))


def _refuse(status, body):
    raise Refusal(status, body)


def test_replies_without_counts_are_counted():
    result = evaluate(None, model=SomeonesModel(nonsense, usage=None))
    assert (result["uncounted_turns"], result["prompt_tokens"]) == (4, 0)


def test_cut_replies_are_counted():
    assert evaluate(None, model=SomeonesModel(nonsense, finish_reason="length"))["cut_turns"] == 4


@cases(
    "settings, said",
    [
        ({"model.path": "bundled"}, "pass --model NAME"),
        ({"model.revision": "main"}, "model.revision 'main' has no effect"),
        ({"rollout.max_input_tokens": 9}, "rollout.max_input_tokens 9 cannot be applied"),
        ({"gateway.tool_parser": "none"}, "gateway.tool_parser 'none' has no effect"),
        ({"gateway.thinking_history": "template"}, "gateway.thinking_history 'template' has"),
        ({"gateway.reasoning_parser": "none"}, "gateway.reasoning_parser 'none' has no effect"),
        ({"env.id": "mth"}, "arl list"),
    ],
)
def test_what_means_nothing_there_is_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        evaluate(nonsense, **settings)


async def _evaluate_our_own(replies: list[str]) -> dict:
    """Our gateway as somebody's endpoint; its sessions' keys are the API keys."""
    chat = ChatFormat.load(BUNDLED)
    engine = ScriptedEngine([chat.encode(f"{reply}<|im_end|>") for reply in replies])
    gateway = Gateway(engine, chat, config=GatewayConfig(), model_name="ours", max_model_len=512)
    session = gateway.open_session(sampling=SessionSampling(max_tokens=48), session_id="s")
    os.environ["OPENAI_API_KEY"] = session.key
    async with gateway.serve() as url:
        overrides = QUICK | {"engine.base_url": url, "eval.num_tasks": 1}
        return await report_of(load_config(overrides=overrides))


def test_our_own_gateway_is_such_an_endpoint():
    task = MathEnv.task_source("eval", seed=0)[0]
    *calls, answer = solve(task)
    texts = [f"<tool_call>\n{_called(call)}\n</tool_call>" for call in calls]
    result = asyncio.run(_evaluate_our_own([*texts, answer["content"]]))
    assert (result["reward"], result["tool_calls"]) == (1.0, len(calls))
    assert result["completion_tokens"] > len(texts)


def _called(message) -> str:
    function = message["tool_calls"][0]["function"]
    return json.dumps({**function, "arguments": json.loads(function["arguments"])})


@pytest.mark.slow
def test_the_summary_as_typed():
    code, out = asyncio.run(typed(gold(4)))
    assert code == 0, out
    assert re.search(r"held-out reward +1.000 over 4 tasks", out)
    assert re.search(r"(?m)^tokens +[\d,]+ of prompts, [\d,]+ of replies$", out)
    assert re.search(r"(?m)^pace +4 episodes, [\d.]+/s$", out)
    assert KEY not in out


def test_a_checkpoint_needs_an_engine_of_our_own():
    config = load_config(overrides=QUICK)
    with pytest.raises(ConfigError, match="--checkpoint"):
        asyncio.run(
            evaluate_all([EvalTarget(config, Path("step-1"))], make_progress("none", total_steps=0))
        )
