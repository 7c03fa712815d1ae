"""`n` samples of one request: a choice and a row each."""

import asyncio

import pytest


@pytest.fixture
def scene(stage, spell, words):
    texts = iter(["one", "two", words.CALL])
    return stage(lambda _: spell.bytewise(next(texts) + words.END))


def _ask(scene, session, words, **fields):
    fields = {"messages": words.FIRST, "tools": [words.CALCULATOR], "n": 3, **fields}
    return asyncio.run(scene.post(session, **fields))


def test_each_sample_is_a_choice_and_a_row(scene, words):
    session = scene.open()
    body = _ask(scene, session, words).body
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    contents = [choice["message"]["content"] for choice in body["choices"]]
    assert sorted(map(str, contents)) == ["None", "one", "two"]
    sampled = sum(len(entry.token_ids) for entry in scene.engine.journal)
    assert body["usage"]["completion_tokens"] == sampled
    assert body["usage"]["prompt_tokens"] == len(scene.engine.journal[0].prompt)
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=3)
    assert record.counters["forks_n_sibling"] == 2


def test_the_choices_of_a_stream_are_told_apart(scene, words):
    events = _ask(scene, scene.open(), words, stream=True).events
    assert events.pop() == "data: [DONE]"
    texts, finishes = {}, {}
    for event in events:
        [choice] = event["choices"]
        index, delta = choice["index"], choice["delta"]
        texts[index] = texts.get(index, "") + (delta.get("content") or "")
        if choice["finish_reason"]:
            finishes[index] = choice["finish_reason"]
    assert sorted(texts.values()) == ["", "one", "two"]
    assert sorted(finishes.values()) == ["stop", "stop", "tool_calls"]


def test_a_conversation_goes_on_from_any_of_them(scene, words, spell):
    session = scene.open()
    choices = _ask(scene, session, words).body["choices"]
    chosen = next(c["message"] for c in choices if c["message"]["content"] == "two")
    scene.engine._script = lambda _: spell.bytewise(words.ANSWER + words.END)
    more = [*words.FIRST, chosen, {"role": "user", "content": "And?"}]
    assert asyncio.run(scene.post(session, messages=more, tools=[words.CALCULATOR])).message == {
        "role": "assistant",
        "content": words.ANSWER,
    }
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=3)


def test_their_seeds_differ(scene, words):
    plain, seeded = scene.open(), scene.open(seed=7)
    _ask(scene, plain, words, seed=5, n=2)
    scene.engine._script = lambda _: [2]
    _ask(scene, seeded, words)
    seeds = [entry.sampling.seed for entry in scene.engine.journal]
    assert seeds[0] == 5
    assert len(set(seeds)) == 5


def test_one_that_fails_fails_them_all(stage, spell, words):
    good = spell.bytewise("ab" + words.END)
    replies = [words.Say(good), words.Say(good, fail_after=1), words.Say(good, delay_s=5)]
    scene = stage(replies)
    session = scene.open()
    assert _ask(scene, session, words).status == 503
    assert session.num_turns == 0
    assert sum(entry.aborted for entry in scene.engine.journal) >= 1
