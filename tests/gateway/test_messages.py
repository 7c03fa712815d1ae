"""Anthropic Messages: how conversations are read, what is refused, and that echoes find their
turn."""

import asyncio
import json

import pytest
from arl_dialects.messages_request import reply_request

from tests.kit.cases import cases

PATH = "/v1/messages"
TOOLS = [{"name": "calculator", "input_schema": {"type": "object"}}]
HELLO = {"role": "user", "content": "Hello"}


def _ask(scene, session, *messages, path=PATH, **fields):
    fields = {"model": "tiny", "max_tokens": 200, "messages": messages or [HELLO], **fields}
    if path != PATH:
        del fields["max_tokens"]
    body = json.dumps({name: value for name, value in fields.items() if value is not None})
    headers = {"x-api-key": session.key, "anthropic-version": "2023-06-01"}
    return asyncio.run(scene.request("POST", path, body.encode(), headers))


def _said(*content):
    return {"role": "assistant", "content": list(content)}


def _text(text):
    return {"type": "text", "text": text}


def _result(text, **more):
    return {"type": "tool_result", "tool_use_id": "t1", "content": text, **more}


def _fed(stage, spell, words, *messages, **fields):
    """What the engine is fed, as text."""
    scene = stage([spell.canonical("Ok." + words.END)])
    assert _ask(scene, scene.open(), *messages, **fields).status == 200
    return scene.gateway._chat.text(list(scene.engine.journal[0].prompt))


def test_a_conversation_is_fed_as_the_same_one_in_openais_shape(stage, spell, words, chat):
    call = {"type": "tool_use", "id": "t1", "name": "calculator", "input": {"expression": "3*4"}}
    fed = _fed(
        stage,
        spell,
        words,
        {"role": "user", "content": [_text("What is"), _text("3*4?")]},
        {"role": "assistant", "content": "Let me "},
        _said(_text("see."), call),
        {"role": "user", "content": [_result([_text("1"), _text("2")]), _text("Well?")]},
        system=[{**_text("Solve."), "cache_control": {"type": "ephemeral"}}],
        tools=TOOLS,
    )
    function = {"name": "calculator", "arguments": '{"expression": "3*4"}'}
    theirs = [
        {"role": "system", "content": "Solve."},
        {"role": "user", "content": "What is\n3*4?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "1\n2"},
        {"role": "user", "content": "Well?"},
    ]
    function = {"name": "calculator", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    assert fed == chat.text(chat.prompt(theirs, tools))


def test_a_failure_without_words_says_that_it_is_one(stage, spell, words):
    call = {"type": "tool_use", "id": "t1", "name": "calculator", "input": {}}
    failed = {"role": "user", "content": [_result(None, is_error=True)]}
    assert "error" in _fed(stage, spell, words, HELLO, _said(call), failed, tools=TOOLS)


@cases(
    "fields, says",
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [HELLO, _said(_text(""))]}, "prefill: the last message has no text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "source"),
        ({"messages": [{"role": "user", "content": [{"type": "picture"}]}]}, "'picture' block"),
        (
            {"messages": [{"role": "user", "content": [_result([{"type": "tool_use"}])]}]},
            "messages[0].content",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"tools": [{"name": "f"}]}, "tools[0]: a tool of the client's needs input_schema"),
        ({"tools": [{**TOOLS[0], "type": "web_search_20250305"}]}, "with input_schema"),
        ({"tool_choice": {"type": "any"}}, "no tools are offered"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "there is no tool 'x'"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"container": "c"}, "container is not supported"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "edits[0]"),
        ({"temperature": 1.5}, "temperature"),
        ({"top_k": -5}, "top_k"),
        ({"frobnicate": 1}, "frobnicate is not supported"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_what_is_refused_is_named(stage, fields, says):
    scene = stage([])
    answer = _ask(scene, scene.open(), **fields)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert says in answer.error["message"]
    assert answer.headers["request-id"].startswith("req_")


def test_what_cannot_change_a_reply_is_ignored(stage, spell, words):
    more = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "cache_control": {"type": "ephemeral"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "tools": [],
        "temperature": None,
    }
    assert _fed(stage, spell, words, **more) == _fed(stage, spell, words)


@pytest.mark.parametrize("choice", [{"type": "none"}, {"type": "auto"}])
def test_calls_are_read_unless_none_are_wanted(stage, spell, words, choice):
    scene = stage([spell.canonical(words.CALL + words.CALL + words.END)])
    single = {**choice, "disable_parallel_tool_use": True}
    answer = _ask(scene, scene.open(), tools=TOOLS, tool_choice=single)
    kinds = [block["type"] for block in answer.body["content"]]
    assert kinds == (["text"] if choice["type"] == "none" else ["tool_use"])


@cases(
    "written, echoed",
    [
        ('{"a": 1.0, "b": 1e2}', {"b": 100, "a": 1}),
        ('{"a": 12345678901234567890}', {"a": 12345678901234567000}),
        ('{"a":"\\u00e9", "a": 2}', {"a": 2}),
        ('{"_raw": "x"}', None),
        ("[1]", None),
        ('{"a": 1e999}', None),
    ],
    ids=["floats", "long-integers", "keys-twice", "raw", "array", "overflow"],
)
def test_a_call_that_javascript_wrote_anew_is_the_one_sampled(stage, spell, words, written, echoed):
    block = f'<tool_call>\n{{"name": "calculator", "arguments": {written}}}\n</tool_call>'
    scene = stage([spell.bytewise(block + words.END), spell.bytewise("Ok." + words.END)])
    session = scene.open()
    [use] = _ask(scene, session, tools=TOOLS).body["content"]
    if echoed is None:
        echoed = use["input"]
        assert list(echoed) == ["_raw"]
    said = _said({**use, "input": echoed})
    result = {**_result("12"), "tool_use_id": use["id"]}
    _ask(scene, session, HELLO, said, {"role": "user", "content": [result]}, tools=TOOLS)
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0


def test_the_blocks_of_a_turn_may_come_back_as_messages(stage, spell, words):
    said = "Hm. " + words.CALL + "\n" + words.CALL
    scene = stage([spell.bytewise(said + words.END), spell.bytewise("Ok." + words.END)])
    session = scene.open()
    blocks = _ask(scene, session, tools=TOOLS).body["content"]
    assert [block["type"] for block in blocks] == ["text", "tool_use", "tool_use"]
    results = [{**_result("1"), "tool_use_id": block["id"]} for block in blocks[1:]]
    users = [{"role": "user", "content": [result]} for result in results]
    _ask(scene, session, HELLO, *(_said(block) for block in blocks), *users, tools=TOOLS)
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0


def test_the_signature_tells_which_of_two_like_replies_is_continued(stage, spell, words):
    two, last = spell.canonical("Same." + words.END), spell.bytewise("Ok." + words.END)
    scene = stage([spell.bytewise("Same." + words.END), two, last, last])
    session = scene.open()
    ids = [_ask(scene, session).body["id"].removeprefix("msg_") for _ in range(2)]
    for index in (0, 1):
        thought = {"type": "thinking", "thinking": "", "signature": ids[index]}
        _ask(scene, session, HELLO, _said(thought, _text("Same.")), HELLO)
        entries = scene.engine.journal
        before = [*entries[index].prompt, *entries[index].token_ids]
        assert list(entries[-1].prompt[: len(before)]) == before


def test_a_foreign_signature_is_nobodys(stage, spell, words):
    scene = stage(lambda _: spell.canonical("Same." + words.END))
    mine, other = scene.open(), scene.open()
    theirs = _ask(scene, other).body["id"].removeprefix("msg_")
    assert other.number_of(theirs) == 0
    assert mine.number_of(theirs) is None
    assert mine.number_of("-".join((mine.id, mine._tag, "9" * 400))) is None
    thought = {"type": "thinking", "thinking": "x", "signature": theirs}
    assert _ask(scene, mine, HELLO, _said(thought, _text("y")), HELLO).status == 200


def test_thinking_is_told_to_the_template(stage, spell, words):
    scene = stage([spell.canonical("Ok." + words.END)] * 2)
    for kind, wanted in (("adaptive", True), ("disabled", False)):
        session = scene.open()
        _ask(scene, session, thinking={"type": kind})
        body = {"model": "m", "max_tokens": 1, "messages": [HELLO], "thinking": {"type": kind}}
        request = reply_request(session, json.dumps(body).encode())
        assert request.template_kwargs == {"enable_thinking": wanted}


def test_a_count_goes_beyond_the_context_and_does_not_touch_the_session(stage):
    scene = stage([], max_model_len=50)
    session = scene.open()
    long = {"role": "user", "content": "abc " * 100}
    answer = _ask(scene, session, long, path=f"{PATH}/count_tokens")
    assert answer.body["input_tokens"] > 100
    assert not any(session.counters.values())
