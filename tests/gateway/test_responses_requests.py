"""Requests of the Responses API: what is refused by name, what is kept, and hostile ones."""

import asyncio
import json

import pytest
from arl_dialects.stored import Responses, StoredResponse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.cases import cases

PATH = "/v1/responses"
MESSAGE = {"role": "user", "content": "Hi"}
FUNCTION = {"type": "function", "name": "f", "parameters": {}}
GROUP = {"type": "namespace", "name": "box", "description": "d"}


def _ask(scene, session, **fields):
    return asyncio.run(scene.post(session, path=PATH, **{"input": "Hi", **fields}))


@pytest.fixture
def scene(stage, spell, words):
    return stage(lambda _: spell.canonical(words.ANSWER + words.END))


REFUSED = [
    ("background", True),
    ("prompt", {"id": "pmpt_1"}),
    ("top_logprobs", 3),
    ("tool_choice", {"type": "web_search"}),
    ("text.format", {"type": "grammar"}),
    ("text.style", "plain"),
    ("reasoning.summary", "detailed"),
    ("stream_options.include_obfuscation", True),
    ("include message.output_text.logprobs", None),
    ("include secrets", None),
    ("top_k", 5),
    ("made_up", 1),
]


def _fields(name, value):
    if name.startswith("include "):
        return {"include": [name.removeprefix("include ")]}
    outer, _, inner = name.partition(".")
    fields = {outer: {inner: value} if inner else value}
    return {**fields, "stream": True} if outer == "stream_options" else fields


@cases("name, value", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(scene, name, value):
    answer = _ask(scene, scene.open(), **_fields(name, value))
    assert (answer.status, answer.error["code"]) == (400, "unsupported_parameter")
    assert answer.error["param"] == name
    assert scene.engine.journal == []


WRONG = [
    ({"input": None}, "input"),
    ({"input": 3}, "input"),
    ({"input": []}, "input"),
    ({"input": ["Hi"]}, "input[0]"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0]"),
    ({"input": [{"role": "user"}]}, "input[0]"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
    ({"input": [MESSAGE, {"id": "msg_1"}]}, "input[1]"),
    ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0]"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0]"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_smell"}]}]}, "input[0].content"),
    ({"truncation": "middle"}, "truncation"),
    ({"conversation": 3}, "conversation"),
    ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
    ({"instructions": 3}, "instructions"),
    ({"store": "no"}, "store"),
    ({"stream": 1}, "stream"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"tools": {}}, "tools"),
    ({"tools": [{**FUNCTION, "strict": "yes"}]}, "tools[0]"),
    ({"tools": [FUNCTION, {"type": "function"}]}, "tools[1]"),
    ({"tools": [FUNCTION, FUNCTION]}, "tools[1]"),
    ({"tools": [FUNCTION, {**GROUP, "tools": [FUNCTION]}]}, "tools[1].tools[0]"),
    ({"tools": [{**GROUP, "tools": [{"type": "custom"}]}]}, "tools[0].tools[0]"),
    ({"tools": [{**FUNCTION, "type": "funktion"}]}, "tools[0]"),
    ({"tools": [{"type": "custom", "name": "g", "format": {"type": "ebnf"}}]}, "tools[0]"),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
    ({"previous_response_id": 7}, "previous_response_id"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity"),
]


@cases("fields, param", WRONG)
def test_what_is_wrong_is_a_400_that_names_it(scene, fields, param):
    answer = _ask(scene, scene.open(), **fields)
    assert answer.status == 400
    assert answer.error["param"] == param
    assert answer.error["type"] == "invalid_request_error"


def test_what_changes_nothing_is_accepted(scene):
    fields = {
        **{"user": "me", "metadata": {"a": "b"}, "service_tier": "flex", "max_tool_calls": 3},
        **{"client_metadata": {"session": "1"}},
        **{"prompt_cache_key": "k", "safety_identifier": "s", "prompt_cache_retention": "24h"},
        **{"truncation": "disabled", "background": False, "include": [], "top_logprobs": 0},
        **{"text": {"format": {"type": "text"}, "verbosity": "low"}, "tools": []},
        **{"reasoning": {"effort": None, "summary": "auto"}, "tool_choice": "auto"},
    }
    body = _ask(scene, scene.open(), **fields).body
    for name in ("user", "metadata", "max_tool_calls", "prompt_cache_key", "text", "reasoning"):
        assert body[name] == fields[name]


@pytest.mark.parametrize("effort", ["none", "high"])
def test_an_effort_is_said_to_the_template(stage, spell, words, thinker, effort):
    chat = thinker(head="{{ reasoning_effort }}")
    scene = stage(lambda _: spell.canonical(words.ANSWER + words.END), chat=chat)
    session = scene.open()
    body = _ask(scene, session, reasoning={"effort": effort}).body
    assert chat.text(scene.engine.journal[-1].prompt).startswith(effort)
    assert body["reasoning"] == {"effort": effort, "summary": None}
    _ask(scene, session, reasoning={"effort": effort})
    assert session.counters["forks_sibling"] == 1
    _ask(scene, session)
    assert session.counters["forks_new_root"] == 1
    wrong = _ask(scene, session, reasoning={"effort": "some"})
    assert (wrong.status, wrong.error["param"]) == (400, "reasoning.effort")


def test_a_policy_of_training_holds_here_too(scene):
    session = scene.open(temperature=0.7)
    assert _ask(scene, session, top_p=0.9).error["param"] == "top_p"  # it is not reported
    assert _ask(scene, session, temperature=0.1).body["temperature"] == 0.7


def test_a_prompt_without_room_is_an_overflow_of_the_input(stage, words):
    scene = stage([], max_model_len=10)
    answer = _ask(scene, scene.open(), instructions="word " * 20)
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert answer.error["param"] == "input"


@pytest.mark.parametrize("kept", [True, False])
def test_a_response_can_be_named_unless_it_was_not_to_be_stored(scene, kept):
    session = scene.open()
    first = _ask(scene, session, store=kept).body
    assert first["store"] == kept
    answer = _ask(scene, session, previous_response_id=first["id"])
    if kept:
        assert answer.body["previous_response_id"] == first["id"]
    else:
        assert (answer.status, answer.error["code"]) == (400, "previous_response_not_found")


def test_a_response_of_another_session_is_not_found(scene):
    first = _ask(scene, scene.open()).body
    answer = _ask(scene, scene.open(), previous_response_id=first["id"])
    assert (answer.status, answer.error["code"]) == (400, "previous_response_not_found")


def test_one_can_go_back_to_an_earlier_response(scene, words):
    session = scene.open()
    first = _ask(scene, session).body["id"]
    for text in ("Go on", "Or not"):
        _ask(scene, session, input=text, previous_response_id=first)
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    assert record.counters["forks"] == 1


def test_conversations_share_what_they_have_in_common_and_are_forgotten():
    table = Responses(kept=3)
    said = [{"role": "user", "content": str(number)} for number in range(10)]
    for end in range(1, 6):
        messages = json.loads(json.dumps([{"other": end == 4}, *said[:end]]))
        table.keep(f"r{end}", StoredResponse(messages))
    assert [table.get(f"r{end}") is not None for end in range(1, 6)] == [False] * 2 + [True] * 3
    four, five = (table.get(id).messages for id in ("r4", "r5"))
    assert five == [{"other": False}, *said[:5]]
    same = [a is b for a, b in zip(four, five, strict=False)]
    assert same == [False, True, True, True, True]


def test_a_session_holds_what_is_said_once(stage, spell, words):
    """Also where clients send everything each time, as most do."""
    scene = stage(lambda _: spell.canonical(words.ANSWER + words.END), max_model_len=100_000)
    session, said = scene.open(), []
    for number in range(12):
        said.append({"role": "user", "content": f"{number}" * 1000})
        said += _ask(scene, session, input=said).body["output"]
    kept = session.state(Responses)._by_id.values()
    assert len(kept) == 12
    assert len({id(message) for one in kept for message in one.messages}) <= 3 * 12
    items = {id(item) for one in kept for item in (*one.items, *one.output)}
    assert len(items) <= 3 * 12
    assert len({id(one.body["tools"]) for one in kept}) == 1


def test_other_routes_say_what_there_is(scene):
    answer = asyncio.run(scene.request("GET", "/v1/answers/resp_1"))
    assert answer.status == 404
    assert "there are POST /v1/chat/completions, POST /v1/completions" in answer.error["message"]
    assert asyncio.run(scene.request("GET", "/v1/responses/resp_1")).status == 401


_texts = st.sampled_from(["", "Hi", "<|im_end|>", "{}", "call_0_0", "msg_e1-0_0", "é\0", "\u2028"])
_junk = st.recursive(
    st.none() | st.booleans() | st.integers() | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=4,
)
_parts = st.fixed_dictionaries(
    {"type": st.sampled_from(["input_text", "output_text", "reasoning_text"])},
    optional={"text": _texts},
)
_content = _texts | st.lists(_parts, max_size=3)
_kinds = st.sampled_from(["message", "function_call", "function_call_output", "reasoning"])
_items = st.fixed_dictionaries(
    {
        "type": _kinds,
        "role": st.sampled_from(["user", "assistant", "system", "developer"]),
        **{name: _texts for name in ("id", "call_id", "name", "arguments", "encrypted_content")},
        **{name: _content for name in ("content", "output")},
    }
)
_spoilt = st.dictionaries(
    st.sampled_from(["type", "role", "id", "call_id", "name", "arguments", "content", "output"]),
    _junk,
)
_fuzzed = st.fixed_dictionaries(
    {
        "input": st.lists(_items, max_size=6)
        | st.lists(st.builds(dict.__or__, _items, _spoilt) | _junk, max_size=3)
    },
    optional={
        "instructions": _texts,
        "tools": st.lists(st.just(FUNCTION), max_size=2),
        "stream": st.booleans(),
        "max_output_tokens": st.integers(min_value=1),
    },
)
_names = (
    "text",
    "reasoning",
    "include",
    "metadata",
    "tools",
    "tool_choice",
    "store",
    "stream_options",
)


@pytest.mark.slow
@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    fields=_fuzzed, junk=st.just({}) | st.dictionaries(st.sampled_from(_names), _junk, max_size=2)
)
def test_whatever_is_sent_is_answered_or_refused(scene, fields, junk):
    session = scene.open()
    answer = _ask(scene, session, **fields, **{k: v for k, v in junk.items() if k not in fields})
    assert answer.status in (200, 400), answer.data
    if answer.status == 400:
        assert answer.error["message"]
    assert session.infra_error == ""


def test_half_a_character_is_refused(scene):
    assert _ask(scene, scene.open(), input="\ud800").status == 400


@cases("depth", [90, 400, 990, 5000])
def test_deep_json_is_answered_or_refused(scene, depth):
    deep = '{"a":' * depth + "1" + "}" * depth
    body = (
        f'{{"input": "Hi", "tools": [{{"type": "function", "name": "f", "parameters": {deep}}}]}}'
    )
    session = scene.open()
    answer = asyncio.run(scene.post(session, body.encode(), path=PATH))
    assert answer.status in (200, 400), answer.data
    assert session.infra_error == ""
