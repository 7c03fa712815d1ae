"""What a session has read before, and what of a request it reads: the same as if it read all."""

import hashlib
import json
import random

from agentgym_rl.gateway import ApiError
from agentgym_rl.gateway.request.chat_request import parse_request
from agentgym_rl.gateway.request.request_cache import Bodies
from tests.kit.cases import cases

SAID = [
    {"role": "system", "content": "Be brief, [{"},
    {"role": "user", "content": 'Say "messages": ✓\\ ]}'},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_0_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "call_0_0", "content": [{"type": "text", "text": "12"}]},
    {"role": "developer", "content": ""},
    {"role": "user", "content": "\n"},
]  # fmt: skip
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"x": [[], {}]}}}


def _read(bodies, body):
    """What is read, or refused."""
    try:
        return bodies.read(body)
    except ApiError as error:
        return error.body


def _whole(body):
    try:
        return parse_request(body)
    except ApiError as error:
        return error.body


def _written(messages, *, indent=None, first=True, **more):
    fields = {"messages": messages, **more} if first else {**more, "messages": messages}
    return json.dumps(fields, indent=indent, ensure_ascii=False).encode()


@cases("first", [True, False])
@cases("indent", [None, 2])
def test_a_growing_conversation_is_read_as_a_whole_would_be(first, indent):
    bodies, before = Bodies(), []
    for count in range(1, len(SAID) + 1):
        body = _written(SAID[:count], indent=indent, first=first, model="m", tools=[TOOL])
        assert bodies.digest(body) == hashlib.sha256(body).digest()
        request = bodies.read(body)
        assert request == parse_request(body)
        assert all(a is b for a, b in zip(before, request.messages, strict=False))
        before = request.messages


PREFIX = b'{"model":"m","messages":[{"role":"user","content":"a"}'
ENDINGS = {
    "same": b"]}",
    "more": b',{"role":"user","content":"b"}]}',
    "spaced": b' , {"role":"user","content":"b"}\n] ,"seed" : 3 }',
    "other parameters": b'],"temperature":0.5,"seed":null}',
    "refused parameters": b'],"temperature":7}',
    "unknown parameters": b'],"wish":7}',
    "bad role": b',{"role":"bot","content":"b"}]}',
    "no object": b",7]}",
    "comma": b",]}",
    "two commas": b',,{"role":"user"}]}',
    "no comma": b'{"role":"user"}]}',
    "cut": b',{"role":"user","content":"b"',
    "not closed": b"]",
    "behind the end": b"]}}",
    "longer value": b'"]}',
    "bad text": b',{"role":"user","content":"\xff"}]}',
    "bad text in a parameter": b'],"user":"\xff"}',
    "messages again": b'],"messages":[{"role":"user","content":"z"}]}',
    "messages again, the same": b'],"messages":[{"role":"user","content":"a"}]}',
    "messages again, escaped": b'],"m\\u0065ssages":[{"role":"user","content":"z"}]}',
    "messages again, none": b'],"messages":[]}',
    "messages inside": b'],"metadata":{"messages":[{"role":"user","content":"a"}]}}',
    "null": b'],"messages":null}',
    "a list": b'],"tools":[{"type":"function","function":{"name":"f"}}]}',
}


@cases("before", ENDINGS.values(), ids=ENDINGS)
def test_a_body_that_begins_as_another_says_what_it_says(before):
    for ending in ENDINGS.values():
        bodies = Bodies()
        _read(bodies, PREFIX + before)
        for body in (PREFIX + ending, PREFIX + before, PREFIX + ending):
            assert _read(bodies, body) == _whole(body)
            assert bodies.digest(body) == hashlib.sha256(body).digest()


OPENINGS = {
    "twice": b'{"messages":[{"role":"user","content":"z"}],"messages":[{"role":"user"}',
    "the same elsewhere": b'{"metadata":{"m":[{"role":"user"}]},"messages":[{"role":"user"}',
    "in a text": b'{"user":"\\"messages\\":[","messages":[{"role":"user"}',
    "inside": b'{"metadata":{"messages":[{"role":"user"}',
}


@cases("opening", OPENINGS.values(), ids=OPENINGS)
def test_messages_are_those_of_the_request(opening):
    bodies = Bodies()
    endings = [b"]}", b']},"messages":[{"role":"user"}]}', b',{"role":"tool"}]}', b']},"n":2}']
    for ending in endings * 2:
        assert _read(bodies, opening + ending) == _whole(opening + ending)


def test_conversations_that_take_turns_are_read_right_and_few_are_kept():
    bodies, chance = Bodies(), random.Random(0)
    told = [[{"role": "user", "content": str(number)}] for number in range(7)]
    for step in range(200):
        messages = chance.choice(told)
        if chance.random() < 0.2:
            del messages[1:]
        messages.append({"role": chance.choice(["user", "assistant"]), "content": str(step)})
        body = _written(messages, model="m", seed=step % 2)
        assert bodies.read(body) == parse_request(body)
    assert len(bodies._last) <= 4
