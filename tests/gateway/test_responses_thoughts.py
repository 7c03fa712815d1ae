"""Thoughts in the Responses API: items of their own, which need not come back."""

import asyncio

import pytest

PATH = "/v1/responses"
THOUGHT = "<think>\nThree fours, é.\n</think>\n\n"
SEALED = {"include": ["reasoning.encrypted_content"], "store": False}


@pytest.fixture
def tool(words):
    return {"type": "function", **words.CALCULATOR["function"]}


def _ask(scene, session, **fields):
    answer = asyncio.run(scene.post(session, path=PATH, **{"input": "3*4?", **fields}))
    assert answer.status == 200, answer.data
    return answer


def _thinks(stage, spell, words, thinker, *texts):
    return stage([spell.bytewise(THOUGHT + text + words.END) for text in texts], chat=thinker())


def test_a_thought_is_an_item_before_what_it_leads_to(stage, spell, words, thinker, tool):
    scene = _thinks(stage, spell, words, thinker, f"I call.\n{words.CALL}")
    body = _ask(scene, scene.open(), tools=[tool]).body
    thought, said, call = body["output"]
    assert [item["type"] for item in (said, call)] == ["message", "function_call"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Three fours, é."}]
    assert (thought["summary"], "encrypted_content" in thought) == ([], False)
    counted = body["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert counted == len(spell.bytewise("<think>\nThree fours, é."))


def test_a_stream_says_what_a_plain_reply_does(stage, spell, words, thinker):
    scene = _thinks(stage, spell, words, thinker, "Twelve.", "Twelve.")
    plain = _ask(scene, scene.open()).body["output"]
    events = _ask(scene, scene.open(), stream=True).typed_events
    streamed = events[-1]["response"]["output"]
    assert [item["content"] for item in streamed] == [item["content"] for item in plain]
    names = [event["type"].removeprefix("response.") for event in events]
    assert names[2:5] == ["output_item.added", "content_part.added", "reasoning_text.delta"]
    pieces = [e["delta"] for e in events if e["type"] == "response.reasoning_text.delta"]
    assert "".join(pieces) == "Three fours, é."


def _whole(item):
    return [item]


def _sealed(item):
    """As clients keep a thought that may not be kept: nothing but its seal."""
    if item["type"] != "reasoning":
        return [item]
    return [{name: item[name] for name in ("type", "summary", "encrypted_content")}]


def _dropped(item):
    return [] if item["type"] == "reasoning" else [item]


@pytest.mark.parametrize("echo", [_whole, _sealed, _dropped])
def test_the_next_turn_goes_on_from_the_tokens_of_the_thought(
    stage, spell, words, thinker, tool, echo
):
    scene = _thinks(stage, spell, words, thinker, words.CALL, f"Hm.\n{words.CALL}", "Twelve.")
    session, said = scene.open(), [{"role": "user", "content": "3*4?"}]
    for _ in range(3):
        output = _ask(scene, session, input=said, tools=[tool], **SEALED).body["output"]
        calls = [item["call_id"] for item in output if item["type"] == "function_call"]
        said += [kept for item in output for kept in echo(item)]
        said += [{"type": "function_call_output", "call_id": i, "output": "12"} for i in calls]
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0
    assert "Three fours, é." in str(record.messages)


def test_a_named_response_goes_on_from_its_thought(stage, spell, words, thinker):
    scene = _thinks(stage, spell, words, thinker, "Twelve.", "Sure.")
    session = scene.open()
    first = _ask(scene, session).body["id"]
    _ask(scene, session, input="Sure?", previous_response_id=first)
    words.check_exact(scene.gateway.close_session(session).rows, scene.engine.journal)


def test_a_reply_that_is_all_thought_has_a_message_still(stage, spell, words, thinker):
    scene = stage([spell.bytewise("<think>\nThree fours.")], chat=thinker())
    body = _ask(scene, scene.open(), max_output_tokens=15).body
    assert [item["type"] for item in body["output"]] == ["reasoning", "message"]
    assert body["status"] == "incomplete"
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] == 15


def test_thoughts_of_others_reach_the_template(stage, spell, words, thinker):
    scene = _thinks(stage, spell, words, thinker, "Sure.")
    said = [
        {"role": "user", "content": "3*4?"},
        {
            **{"type": "reasoning", "id": "rs_1", "summary": []},
            "content": [{"type": "reasoning_text", "text": "By heart."}],
        },
        {"role": "assistant", "content": "Twelve."},
        {"role": "user", "content": "Sure?"},
    ]
    _ask(scene, scene.open(), input=said)
    prompt = thinker().text(scene.engine.journal[0].prompt)
    assert "<think>\nBy heart.\n</think>\n\nTwelve." in prompt
