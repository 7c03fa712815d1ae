"""Replies whose beginning the client wrote: they go on after it, and the conversation goes on."""

import asyncio
import json

import pytest

from tests.kit.cases import cases

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
ASKED = [{"role": "user", "content": "What is 3*4?"}]
BEGUN = {"role": "assistant", "content": "The answer"}
CONTINUED = {
    CHAT: {"continue_final_message": True, "add_generation_prompt": False},
    MESSAGES: {"max_tokens": 200},
}


def _ask(scene, session, path, messages, **fields):
    return asyncio.run(scene.post(session, path=path, messages=messages, **fields))


def _reply(path, answer):
    assert answer.status == 200, answer.data
    if path == CHAT:
        return answer.message["content"]
    return "".join(block["text"] for block in answer.body["content"])


@cases("path", CONTINUED)
def test_a_reply_goes_on_after_its_beginning_and_is_one_row(stage, spell, words, path):
    scene = stage([spell.bytewise(text + words.END) for text in ("Hm.", " is 12.", "Bye.")])
    session, plain = scene.open(), {} if path == CHAT else {"max_tokens": 200}
    said = [*ASKED]
    said += [
        {"role": "assistant", "content": _reply(path, _ask(scene, session, path, said, **plain))}
    ]
    said += [{"role": "user", "content": "Well?"}]
    text = _reply(path, _ask(scene, session, path, [*said, BEGUN], **CONTINUED[path]))
    assert text == " is 12."
    end = scene.gateway._chat.text(scene.engine.journal[1].prompt)
    assert end.endswith("assistant\nThe answer")
    said += [
        {"role": "assistant", "content": "The answer is 12."},
        {"role": "user", "content": "Ok"},
    ]
    _reply(path, _ask(scene, session, path, said, **plain))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0
    assert [m["content"] for m in record.messages[-3:]] == ["The answer is 12.", "Ok", "Bye."]


@cases("path", CONTINUED)
def test_a_reply_that_was_cut_goes_on_with_its_exact_tokens(stage, spell, words, path):
    scene = stage([
        words.Say(spell.bytewise("T"), finish_reason="length"),
        words.Say(spell.bytewise("he answer is"), finish_reason="length"),
        spell.bytewise(" 12." + words.END),
        spell.bytewise("Bye." + words.END),
    ])  # fmt: skip
    session, plain = scene.open(), {} if path == CHAT else {"max_tokens": 200}
    said = _reply(path, _ask(scene, session, path, ASKED, **plain))
    for _ in range(2):
        begun = [*ASKED, {"role": "assistant", "content": said}]
        said += _reply(path, _ask(scene, session, path, begun, **CONTINUED[path]))
    assert said == "The answer is 12."
    whole = [*ASKED, {"role": "assistant", "content": said}, {"role": "user", "content": "Ok"}]
    _reply(path, _ask(scene, session, path, whole, **plain))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0


def test_equal_replies_with_a_beginning_belong_to_what_was_asked(stage, spell, words):
    scene = stage([spell.bytewise(text + words.END) for text in (" is 12.", " is 12.", "Bye.")])
    session = scene.open()
    for asked in (ASKED, [{"role": "user", "content": "What is 4*3?"}]):
        _reply(CHAT, _ask(scene, session, CHAT, [*asked, BEGUN], **CONTINUED[CHAT]))
    whole = {"role": "assistant", "content": "The answer is 12."}
    _reply(CHAT, _ask(scene, session, CHAT, [*ASKED, whole, {"role": "user", "content": "Ok"}]))
    words.check_exact(scene.gateway.close_session(session).rows, scene.engine.journal, num_rows=2)
    first, _, last = (entry.prompt for entry in scene.engine.journal)
    assert last[: len(first)] == first


def test_the_count_of_a_prefill_is_exact(stage, spell, words):
    scene = stage([spell.canonical(" is 12." + words.END)])
    session = scene.open()
    said = [*ASKED, BEGUN]
    counted = _ask(scene, session, f"{MESSAGES}/count_tokens", said).body["input_tokens"]
    used = _ask(scene, session, MESSAGES, said, max_tokens=9).body["usage"]["input_tokens"]
    assert counted == used == len(scene.engine.journal[0].prompt)


@pytest.mark.parametrize("opened", [False, True])
def test_a_model_that_thinks_goes_on_in_its_text(stage, spell, words, thinker, opened):
    chat = thinker(opened=opened)
    scene = stage([spell.canonical(" is 12." + words.END)], chat=chat)
    session = scene.open()
    answer = _ask(scene, session, MESSAGES, [*ASKED, BEGUN], max_tokens=9)
    assert answer.body["content"] == [{"type": "text", "text": " is 12."}]
    assert chat.text(scene.engine.journal[0].prompt).endswith("assistant\nThe answer")


def test_a_stream_begins_after_the_beginning(stage, spell, words):
    scene = stage([spell.canonical(" is 12." + words.END)])
    fields = {**CONTINUED[MESSAGES], "stream": True}
    events = _ask(scene, scene.open(), MESSAGES, [*ASKED, BEGUN], **fields).typed_events
    deltas = [e["delta"]["text"] for e in events if e["type"] == "content_block_delta"]
    assert "".join(deltas) == " is 12."


def test_a_second_beginning_is_a_fork(stage, spell, words):
    scene = stage([spell.bytewise(" x." + words.END)] * 2)
    session = scene.open()
    for text in ("One", "Two"):
        begun = [*ASKED, {"role": "assistant", "content": text}]
        _reply(CHAT, _ask(scene, session, CHAT, begun, **CONTINUED[CHAT]))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    assert record.counters["forks_history_edit"] == 1


CALLS = {"role": "assistant", "content": "x", "tool_calls": [
    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}  # fmt: skip
REFUSED = [
    ({"continue_final_message": True, "add_generation_prompt": True}, BEGUN, "with false"),
    ({"add_generation_prompt": False}, BEGUN, "add_generation_prompt"),
    ({"continue_final_message": True}, CALLS, "has calls"),
    ({"continue_final_message": True}, {**BEGUN, "content": ""}, "has no text"),
    (
        {"continue_final_message": True, "response_format": {"type": "json_object"}},
        BEGUN,
        "a form holds for a whole reply",
    ),
]


@cases("fields, last, says", REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_continued_says_why(stage, fields, last, says):
    answer = _ask(stage([]), stage([]).open(), CHAT, [*ASKED, last], **fields)
    scene = stage([])
    answer = _ask(scene, scene.open(), CHAT, [*ASKED, last], **fields)
    assert (answer.status, says in answer.error["message"]) == (400, True), answer.data


def test_without_the_parameter_a_last_message_is_a_turn_of_its_own(stage, spell, words):
    scene = stage([spell.canonical("Yes." + words.END)])
    _ask(scene, scene.open(), CHAT, [*ASKED, BEGUN])
    text = scene.gateway._chat.text(scene.engine.journal[0].prompt)
    assert text.count("<|im_start|>assistant") == 2


def test_a_body_that_goes_on_from_a_prefill_is_read_whole(stage, spell, words):
    """Bodies are remembered by their beginning; the last message of the first was no turn."""
    scene = stage([spell.bytewise(text + words.END) for text in (" is 12.", "Bye.")])
    session = scene.open()
    head = f'{{"model": "m", "continue_final_message": true, "messages": [{json.dumps(ASKED[0])}'
    for tail in (f", {json.dumps(BEGUN)}", f", {json.dumps(BEGUN)}, {json.dumps(ASKED[0])}"):
        answer = asyncio.run(scene.post(session, f"{head}{tail}]}}".encode()))
        assert answer.status == 200, answer.data
    assert scene.gateway._chat.text(scene.engine.journal[1].prompt).endswith("assistant\n")
