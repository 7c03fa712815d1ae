"""Sampling parameters that clients set by themselves: honoured, refused, or left to the session."""

import asyncio
import logging

import pytest

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import SamplingParams
from agentgym_rl.engines import Router
from agentgym_rl.engines.scripted import ScriptedEngine
from tests.kit.cases import cases
from tests.kit.someones_model import SomeonesModel

pytest.importorskip("anthropic")

from someones_relay import NAME, talk

HELLO = [{"role": "user", "content": "Hi"}]
DIALECTS = {
    "chat": ("/v1/chat/completions", {"messages": HELLO}),
    "completions": ("/v1/completions", {"prompt": "Hi"}),
    "messages": ("/v1/messages", {"messages": HELLO, "max_tokens": 60}),
    "responses": ("/v1/responses", {"input": "Hi"}),
}
SET = {
    "browser-use": {"frequency_penalty": 0.3},
    "gptme": {"top_p": 0.1, "temperature": 0.0},
    "a penalty of vLLM's": {"repetition_penalty": 1.1},
    "a bias": {"logit_bias": {"5": 1}},
    "of llama.cpp": {"mirostat": 2, "mirostat_tau": 5.0, "min_p": 0.05, "top_k": 40},
    "no values": {"top_p": "high", "top_k": [], "logit_bias": 7, "presence_penalty": 1},
}
OFF = {
    "penalties": {"frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1.0},
    "cuts": {"top_p": 1, "top_k": 0, "min_p": 0, "typical_p": 1},
    "all tokens": {"top_p": 1.0, "top_k": None},
    "one choice": {"n": 1, "best_of": 1, "logprobs": None},
    "no bias": {"logit_bias": {"5": 0, "7": 0.0}},
    "no search": {"search_parameters": {"mode": "off", "return_citations": True}},
}


@pytest.fixture
def ask(stage, spell, words):
    """Asks one request in a session that trains; returns all that is left of it."""

    def ask(dialect, fields, *, sampling="request", **policy):
        scene = stage(
            [spell.canonical("Ok." + words.END)] * 2, config=GatewayConfig(sampling=sampling)
        )
        path, needed = DIALECTS[dialect]
        session = scene.open(seed=3, **policy)
        answer = asyncio.run(scene.post(session, path=path, **needed, **fields))
        return answer, session.record(), scene.engine.journal

    return ask


@cases("who", OFF)
@cases("dialect", DIALECTS)
@cases("sampling", ["request", "session"])
def test_what_changes_nothing_is_accepted_and_not_counted(ask, dialect, who, sampling):
    answer, record, journal = ask(dialect, OFF[who], sampling=sampling)
    assert answer.status == 200, answer.error
    assert (record.counters["ignored_sampling"], record.counters["omitted_tools"]) == (0, 0)
    assert not journal[0].sampling.truncated_by


@cases("who", SET)
@cases("dialect", DIALECTS)
def test_what_cannot_train_is_refused_before_anything_is_sampled(ask, dialect, who):
    answer, record, journal = ask(dialect, SET[who])
    assert (answer.status, journal, record.rows) == (400, [], [])
    if who != "no values":
        assert 'set gateway.sampling = "session" to ignore it' in answer.error["message"]


@cases("who", SET)
@cases("dialect", DIALECTS)
def test_the_session_decides_if_it_is_to(ask, dialect, who, caplog):
    caplog.set_level(logging.WARNING)
    free, _, plain = ask(dialect, {})
    answer, record, journal = ask(dialect, SET[who], sampling="session")
    assert (free.status, answer.status) == (200, 200)
    assert journal[0].sampling == plain[0].sampling
    assert record.counters["ignored_sampling"] == 1
    (said,) = [line for line in caplog.messages if "gateway.sampling" in line]
    assert all(name in said for name in SET[who] if name not in ("temperature", "top_k"))
    assert "temperature" not in said  # the session always decides that


@cases("dialect", DIALECTS)
def test_a_session_without_a_temperature_takes_none_of_the_clients(ask, dialect):
    _, record, journal = ask(dialect, {"temperature": 0.2}, sampling="session", temperature=None)
    assert journal[0].sampling.temperature == 1.0
    assert record.counters["ignored_sampling"] == 1


def test_each_name_is_said_once_and_each_request_counted(stage, spell, words, caplog):
    scene = stage(
        [spell.canonical("Ok." + words.END)] * 3, config=GatewayConfig(sampling="session")
    )
    session = scene.open()
    said = list(HELLO)
    for _ in range(3):
        answer = asyncio.run(scene.post(session, messages=said, top_p=0.1))
        said += [answer.message, *HELLO]
    assert session.counters["ignored_sampling"] == 3
    assert sum("top_p" in line for line in caplog.messages) == 1
    assert len(session.record().rows) == 1


def test_a_search_that_is_to_be_made_is_a_tool_that_is_left_out(ask):
    answer, record, _ = ask("chat", {"search_parameters": {"mode": "auto"}})
    assert (answer.status, record.counters["omitted_tools"]) == (200, 1)
    assert ask("chat", {"search_parameters": "off"})[0].status == 400


RELAYED = {
    "chat": lambda to: to.openai.chat.completions.create(model=NAME, messages=HELLO, top_p=0.1),
    "messages": lambda to: to.anthropic.messages.create(
        model=NAME, messages=HELLO, max_tokens=9, extra_body={"top_p": 0.1}
    ),
    "responses": lambda to: to.openai.responses.create(model=NAME, input="Hi", top_p=0.1),
}


@cases("dialect", RELAYED)
@cases("sampling", ["request", "session"])
def test_a_model_served_elsewhere_is_asked_as_the_session_says(dialect, sampling):
    model = SomeonesModel(lambda _: {"content": "Ok."})

    async def converse(scene):
        await RELAYED[dialect](scene)
        return scene.session.counters["ignored_sampling"]

    ignored = talk(model, converse, gateway=GatewayConfig(sampling=sampling))
    asked = {"request": (0.1, 0), "session": (None, 1)}
    assert (model.requests[-1].get("top_p"), ignored) == asked[sampling]


def test_one_engine_of_several_that_cannot_tell_is_enough_to_refuse():
    router = Router(interrupt="abort", wait_s=1.0)
    sampling = SamplingParams(max_tokens=4, top_p=0.5)
    told = []
    for name in ("yes", "no"):
        router.add(name, ScriptedEngine([], has_support=name == "yes"), version=0)
        told.append(router.no_support(sampling))
    assert told == ["", "does not report them"]
