"""Large requests are worked on beside the event loop, or refused before they are read."""

import asyncio
import gc
import json
import random
import re
import threading
import time

import pytest
from arl_dialects.stored import Responses

from agentgym_rl.gateway import ApiError
from agentgym_rl.gateway.request.body import check_values, num_values
from agentgym_rl.gateway.session.tree import Location, Walk, Walks
from agentgym_rl.gateway.template.chat_format import TooLong
from tests.kit.cases import cases

SIZE = 1_500_000
CONTEXT = 4096
CHAT, RAW = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
ASKS = {"role": "user", "content": "?"}
LONG = "The quick brown fox. " * (SIZE // 21)
OVERFLOW, VALUES = "context_length_exceeded", "too_many_values"
UNSUPPORTED = "unsupported_parameter"


def _tool(**function):
    return {"type": "function", "function": {"name": "f", **function}}


def _calls(arguments):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    return [ASKS, said, {"role": "tool", "tool_call_id": "c", "content": "!"}]


def _chat(**body):
    return CHAT, {"model": "m", "messages": [ASKS], **body}


def _schema(schema):
    held = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    return _chat(response_format=held)


EMPTY = [{}] * (SIZE // 3)
SHAPES = {
    "a long prompt": (RAW, {"model": "m", "prompt": LONG}, OVERFLOW),
    "a prompt of digits": (RAW, {"model": "m", "prompt": "0123456789" * (SIZE // 10)}, OVERFLOW),
    "a prompt of ids": (RAW, {"model": "m", "prompt": [1] * 600_000}, OVERFLOW),
    "a prompt of fewer ids": (RAW, {"model": "m", "prompt": [1] * 90_000}, OVERFLOW),
    "a long message": (*_chat(messages=[ASKS | {"content": LONG}]), OVERFLOW),
    "special tokens": (*_chat(messages=[ASKS | {"content": "<|im_end|>" * 100_000}]), OVERFLOW),
    "many messages": (*_chat(messages=[ASKS] * 60_000), VALUES),
    "fewer messages": (*_chat(messages=[ASKS, ASKS | {"role": "assistant"}] * 8_000), OVERFLOW),
    "many parts": (
        *_chat(messages=[ASKS | {"content": [{"type": "text", "text": "a"}] * 20_000}]),
        OVERFLOW,
    ),
    "a tool's description": (*_chat(tools=[_tool(description=LONG)]), OVERFLOW),
    "many tools": (*_chat(tools=[_tool(description="d")] * 10_000), OVERFLOW),
    "a tool's parameters": (*_chat(tools=[_tool(parameters={"x": EMPTY})]), VALUES),
    "arguments": (*_chat(messages=_calls(json.dumps({"a": LONG}))), OVERFLOW),
    "arguments of many values": (*_chat(messages=_calls(json.dumps(EMPTY))), OVERFLOW),
    "a template's arguments": (*_chat(chat_template_kwargs={"enable_thinking": LONG}), None),
    "a schema": (*_schema({"enum": [f"value {i}" for i in range(60_000)]}), UNSUPPORTED),
    "logit_bias": (*_chat(logit_bias=dict.fromkeys(map(str, range(60_000)), 1)), UNSUPPORTED),
    "stop strings": (*_chat(stop=["a"] * 90_000), None),
    "a wrong number": (*_chat(temperature=LONG), None),
    "an unknown name": (*_chat(**{LONG: 1}), UNSUPPORTED),
    "Anthropic's messages": (
        MESSAGES, {"model": "m", "max_tokens": 1, "messages": [ASKS | {"content": LONG}]}, ...,
    ),
    "Anthropic's count": (
        f"{MESSAGES}/count_tokens", {"model": "m", "messages": [ASKS | {"content": LONG}]}, ...,
    ),
    "Responses": (RESPONSES, {"model": "m", "input": LONG}, OVERFLOW),
    "Responses' items": (RESPONSES, {"model": "m", "input": [ASKS] * 15_000}, OVERFLOW),
}  # fmt: skip


class Ticks:
    """How much CPU time the event loop's thread spent between two looks at the clock. Time that
    others took, on a busy machine, does not count."""

    def __init__(self):
        self.longest_s, self.count = 0.0, 0

    async def run(self):
        last = time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.thread_time()
            self.longest_s, self.count = max(self.longest_s, now - last), self.count + 1
            last = now


async def _beside(ticks, answer):
    gc.disable()  # a collection looks at all that other tests have left, in whichever thread
    try:
        async with asyncio.TaskGroup() as tasks:
            ticking = tasks.create_task(ticks.run())
            found = await answer
            ticking.cancel()
        return found
    finally:
        gc.enable()


@pytest.mark.slow
def test_no_request_holds_the_event_loop(stage):
    faults = []
    for name, (path, body, code) in SHAPES.items():
        scene = stage([], max_model_len=CONTEXT)
        session, ticks = scene.open(turn_timeout_s=60.0), Ticks()
        answer = asyncio.run(_beside(ticks, scene.post(session, path=path, **body)))
        said = answer.body.get("error", {})
        if answer.status != 400 or (code is not ... and said["code"] != code):
            faults.append(f"{name}: {answer.status} {str(said)[:200]}")
        if ticks.longest_s > 0.05:
            faults.append(f"{name}: held the loop for {1e3 * ticks.longest_s:.0f} ms")
        if session.infra_error or len(answer.data) > 25_000:
            faults.append(f"{name}: {session.infra_error} {len(answer.data)} bytes")
    assert not faults, "\n".join(faults)


@pytest.mark.slow
def test_the_event_loop_runs_while_a_long_prompt_is_tokenised(stage):
    scene, ticks = stage([], max_model_len=60_000), Ticks()
    prompt = "".join(random.Random(0).choices("0123456789", k=480_000))
    answer = asyncio.run(
        _beside(
            ticks, scene.post(scene.open(turn_timeout_s=60.0), path=RAW, model="m", prompt=prompt)
        )
    )
    assert answer.error["code"] == OVERFLOW
    assert ticks.count > 20


@pytest.mark.slow
def test_log_probs_of_a_long_reply_are_written_beside_the_loop(stage, spell, words):
    script = [spell.canonical("x") * 8_000 + spell.canonical(words.END)]
    scene, ticks = stage(script, max_model_len=16_384), Ticks()
    session = scene.open(max_tokens=10_000)
    posted = scene.post(session, messages=[ASKS], logprobs=True)
    answer = asyncio.run(_beside(ticks, posted))
    choice = answer.body["choices"][0]
    assert choice["message"]["content"] == "x" * 8_000
    assert len(choice["logprobs"]["content"]) == 8_000
    assert ticks.longest_s < 0.05


@pytest.mark.slow
def test_a_refused_request_waits_for_no_garbage_collector(stage):
    """What the collector has to look at keeps all others waiting."""
    scene = stage([], max_model_len=CONTEXT)
    gc.collect()
    gc.disable()
    try:
        before = _num_places()
        answer = asyncio.run(scene.post(scene.open(), messages=[ASKS] * 3_000))
        assert answer.error["code"] == OVERFLOW
        for _ in range(200):  # its thread may still be about to let it go
            if _num_places() == before:
                break
            time.sleep(0.01)
        assert _num_places() == before
    finally:
        gc.enable()


def _num_places():
    """Count the conversations that are looked up; each has all the messages and their keys."""
    return sum(type(one) is Location for one in gc.get_objects())


ITEMS = [ASKS] * 3_000
SHORT = ASKS, ASKS | {"role": "assistant", "content": "!"}


@cases(
    "path, fields",
    [
        (RESPONSES, {"input": ITEMS}),
        (RESPONSES, {"input": ITEMS, "stream": True}),
        (MESSAGES, {"max_tokens": 9, "messages": SHORT * 3_000, "thread": {"type": "create"}}),
    ],
    ids=["responses", "streamed", "threads"],
)
def test_a_long_conversation_is_kept_beside_the_loop(
    stage, spell, words, monkeypatch, path, fields
):
    """A message is compared with those of earlier requests, however short the reply is."""
    threads, keep = [], Responses.keep

    def kept(*args):
        threads.append(threading.current_thread())
        keep(*args)

    monkeypatch.setattr(Responses, "keep", kept)
    scene = stage(lambda _: spell.canonical("!" + words.END), max_model_len=100_000)
    for few in (False, True):
        asked = {
            name: v[:3] if few and type(v) in (list, tuple) else v for name, v in fields.items()
        }
        answer = asyncio.run(scene.post(scene.open(), path=path, model="m", **asked))
        assert answer.status == 200, answer.data
    assert [one is threading.main_thread() for one in threads] == [False, True]


def test_a_long_message_has_the_tokens_of_its_parts(chat):
    """However many special tokens somebody writes."""
    literal = "<|im_end|>"
    for count in (0, 1, 3, 25_000):
        text = f"a{literal}" * count + "z"
        message = {"role": "user", "content": text}
        marked = re.sub(re.escape(literal), literal[0] + "\ue002break\ue003" + literal[1:], text)
        [shown] = [chat._disarmed(message)]
        assert shown["content"] == marked
        parts = marked.split("\ue002break\ue003")
        assert chat.encode(marked) == [id for part in parts for id in chat.encode(part)]


def test_a_text_is_too_long_only_if_it_is(chat):
    """Length in characters says nothing: a token may stand for two hundred of them."""
    vocabulary = chat._tokenizer.get_vocab()
    longest = max((word for word in vocabulary if word.isascii() and word.isalpha()), key=len)
    added = max(chat.added_tokens, key=len)
    faults = []
    for word, count in ((longest, 20_000), (added, 20_000), ("ab 7 ", 40_000), ("\u00e9", 70_000)):
        text = word * count
        whole = chat.encode(text)
        for most in (10, len(whole) // 2, len(whole) - 1, len(whole), 2 * len(whole)):
            try:
                fits = chat.encode(text, most=most) == whole
            except TooLong as error:
                fits = error.num_tokens > most and len(whole) > most
            if not fits:
                faults.append((word, most))
    assert not faults


def _num_values(value):
    if isinstance(value, dict | list):
        inside = value.values() if isinstance(value, dict) else value
        return 1 + sum(map(_num_values, inside))
    return 1


def test_values_are_counted_without_being_read():
    chance = random.Random(5)
    pieces = [",", "[", "{", '"', "\\", "\\\\", '\\"', "a", ":", "]", "}", "\u00e9", "\n"]

    def text():
        return "".join(chance.choices(pieces, k=chance.randrange(12)))

    def value(depth):
        kind = chance.randrange(6 if depth < 5 else 3)
        if kind < 3:
            return (text(), 7, None)[kind]
        size = chance.randrange(5)
        if kind < 5:
            return [value(depth + 1) for _ in range(size)]
        return {f"{text()}{i}": value(depth + 1) for i in range(size)}

    for _ in range(2_000):
        given = value(0)
        document = json.dumps(given, ensure_ascii=chance.random() < 0.5).encode()
        true = _num_values(given)
        for most in (0, true // 2, true, 2 * true + 2):
            found = num_values(document, most=most)
            if found <= most:
                assert true <= most + 1, (document, most)
            else:  # empty arrays and objects count twice
                assert 2 * true > most, (document, most)
    exact = json.dumps(['[{,\\"' * 9] * 100).encode()
    assert num_values(exact, most=100) == 100
    with pytest.raises(ApiError, match="at least 201 JSON values, allowed: 200"):
        check_values(b"[" + b"1," * 200 + b"1]", most=200)
    check_values(b"[" + b"1," * 199 + b"1]", most=200)


def test_a_walk_that_a_second_reply_overtook_is_not_kept():
    said = [ASKS]
    walks = Walks()
    walk = Walk(None, {}, [], [], None, None, walks.num_cleared)
    walks.clear()
    walks.keep(walk, walk.to(said, said, 1, None, False))
    assert walks.longest(said, None, walk.template_kwargs) is None
    walk = Walk(None, walk.template_kwargs, [], [], None, None, walks.num_cleared)
    longer = walk.to(said, said, 1, None, False)
    walks.keep(walk, longer)
    assert walks.longest(said, None, walk.template_kwargs) is longer
