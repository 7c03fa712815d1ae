"""Streams: the same message and the same row as without, piece by piece."""

import asyncio

import pytest


def _stream(scene, session, words, **fields):
    fields = {"messages": words.FIRST, "tools": [words.CALCULATOR], "stream": True, **fields}
    answer = asyncio.run(scene.post(session, **fields))
    assert answer.headers["content-type"] == "text/event-stream"
    return answer.events


def _deltas(events):
    return [event["choices"][0]["delta"] for event in events if event["choices"]]


def _message(events):
    deltas = _deltas(events[:-1])
    content = "".join(delta.get("content") or "" for delta in deltas)
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    calls = [{k: v for k, v in call.items() if k != "index"} for call in calls]
    return {"role": "assistant", "content": content or None, "tool_calls": calls}


@pytest.mark.parametrize("how", ["canonical", "bytewise"])
def test_a_stream_says_and_records_what_a_plain_reply_does(stage, spell, words, how):
    text = f"Let mé see.\n{words.CALL}\n{words.CALL}{words.END}"
    scene = stage([getattr(spell, how)(text)] * 2)
    plain, streamed = scene.open(), scene.open()
    message = asyncio.run(scene.post(plain, messages=words.FIRST, tools=[words.CALCULATOR])).message
    assert _message(_stream(scene, streamed, words)) == message
    [one], [other] = (scene.gateway.close_session(s).rows for s in (plain, streamed))
    for name in ("tokens", "loss_mask", "behavior_logprobs", "policy_versions", "turn_ids"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()


def test_the_order_of_events(stage, spell, words):
    scene = stage([spell.bytewise("Hm. " + words.CALL + words.END)])
    options = {"include_usage": True}
    events = _stream(scene, scene.open(), words, stream_options=options)
    assert events.pop() == "data: [DONE]"
    usage = events.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == len(scene.engine.journal[0].token_ids)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-1]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "tool_calls",
    }
    shown = [next(iter(delta)) for delta in _deltas(events[1:-1])]
    assert shown == ["content"] * 3 + ["tool_calls"]
    assert len({event["id"] for event in events}) == 1


def test_content_arrives_while_the_engine_still_samples(stage, spell, words):
    scene = stage([words.Say(spell.bytewise("abc" + words.END), delay_s=0.02)])
    session, seen = scene.open(), []
    original = scene.engine._sample

    def sample(*arguments):
        seen.append(session.num_turns)
        return original(*arguments)

    scene.engine._sample = sample
    events = _stream(scene, session, words)
    assert [d.get("content") for d in _deltas(events[:-1])] == ["", "a", "b", "c", None]
    assert seen == [0, 0, 0, 0]
    assert session.num_turns == 1


def test_the_turn_is_recorded_before_its_finish_is_sent(stage, spell, words):
    scene = stage([spell.bytewise("ab" + words.END)])
    session, turns_at = scene.open(), {}
    app = scene.gateway.app

    async def spying(scope, receive, send):
        async def spy(message):
            if b'finish_reason":"stop' in message.get("body", b""):
                turns_at["finish"] = session.num_turns
            await send(message)

        await app(scope, receive, spy)

    scene.gateway.app = spying
    _stream(scene, session, words)
    assert turns_at == {"finish": 1}


def test_an_engine_that_fails_before_a_word_is_a_plain_503(stage, spell, words):
    scene = stage([words.Say(spell.bytewise("ab"), fail_after=0)])
    answer = asyncio.run(scene.post(scene.open(), messages=words.FIRST, stream=True))
    assert answer.status == 503


def test_an_engine_that_fails_in_the_middle_ends_the_stream_with_an_error(stage, spell, words):
    scene = stage([words.Say(spell.bytewise("ab"), fail_after=1)])
    session = scene.open()
    events = _stream(scene, session, words)
    assert events[-1]["error"]["code"] == "engine_failed"
    record = scene.gateway.close_session(session)
    assert (record.rows, record.num_turns) == ([], 0)
    assert "after 1 tokens" in record.infra_error


def test_log_probs_come_with_the_finish(stage, spell, words):
    scene = stage([spell.bytewise("ab" + words.END)])
    events = _stream(scene, scene.open(), words, logprobs=True)
    content = events[-2]["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["a", "b"]
