"""Completions: text or token ids in, and the same record of what was sampled."""

import asyncio
import json

import pytest

from tests.kit.cases import cases

PATH = "/v1/completions"


async def _complete(scene, session, prompt, **fields):
    fields = {"model": "tiny", "prompt": prompt, "max_tokens": 200, **fields}
    headers = {"authorization": f"Bearer {session.key}"}
    return await scene.request("POST", PATH, json.dumps(fields).encode(), headers)


def _ask(scene, session, prompt, **fields):
    return asyncio.run(_complete(scene, session, prompt, **fields))


def _choice(answer):
    assert answer.status == 200, answer.data
    return answer.body["choices"][0]


@pytest.mark.parametrize("how", ["canonical", "bytewise"])
def test_prompts_of_ids_that_go_on_from_a_reply_make_one_exact_row(stage, spell, words, how):
    scene = stage([getattr(spell, how)(text) for text in ("wörd" + words.END, "two", "three")])
    session = scene.open()
    ids = spell.canonical("Once upon")
    for new in ("\nmore: ", " and"):
        choice = _choice(_ask(scene, session, ids, return_token_ids=True))
        assert choice["prompt_token_ids"] == ids
        ids = ids + choice["token_ids"] + spell.canonical(new)
    _ask(scene, session, ids[: -len(spell.canonical(" and"))])  # right after the reply, too
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0


def test_a_text_is_its_own_tokens_and_a_fork_is_counted(stage, spell, words):
    scene = stage([spell.bytewise("the answer"), spell.canonical("three")])
    session = scene.open()
    text = _choice(_ask(scene, session, "one "))["text"]
    _ask(scene, session, ["one " + text + " more"])
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    assert scene.engine.journal[1].prompt == tuple(spell.canonical("one the answer more"))
    assert (record.counters["forks"], record.counters["forks_history_edit"]) == (1, 1)
    assert record.messages[0]["content"] == "one the answer more"


def test_samples_log_probs_and_stop_strings(stage, spell, words):
    scene = stage([spell.bytewise("ab.c"), spell.bytewise("xy" + words.END)])
    session = scene.open()
    answer = _ask(scene, session, "go", n=2, logprobs=1, stop=".")
    first, second = answer.body["choices"]
    assert (first["text"], second["text"]) == ("ab", "xy")
    assert second["logprobs"]["tokens"] == ["x", "y"]
    assert second["logprobs"]["token_logprobs"] == scene.engine.journal[1].logprobs[:2]
    assert second["logprobs"]["text_offset"] == [0, 1]
    assert answer.body["usage"]["completion_tokens"] == 7
    record = scene.gateway.close_session(session)
    assert (len(record.rows), record.counters["forks_n_sibling"]) == (2, 1)


def test_a_stream_says_what_a_plain_reply_does(stage, spell, words):
    scene = stage([spell.bytewise("hé" + words.END)] * 2)
    plain, streamed = scene.open(), scene.open()
    text = _choice(_ask(scene, plain, "go"))["text"]
    fields = {"stream": True, "stream_options": {"include_usage": True}}
    events = _ask(scene, streamed, "go", **fields).events
    assert events.pop() == "data: [DONE]"
    assert events.pop()["usage"]["completion_tokens"] == 4
    assert "".join(event["choices"][0]["text"] for event in events) == text == "hé"
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_reply_is_sixteen_tokens_unless_more_are_asked_for(stage, spell):
    scene = stage([spell.bytewise("x" * 40)])
    choice = _choice(_ask(scene, scene.open(), "go", max_tokens=None))
    assert (len(choice["text"]), choice["finish_reason"]) == (16, "length")


@cases(
    "fields, says",
    [
        ({"prompt": ["a", "b"]}, "several"),
        ({"prompt": [[1], [2]]}, "several"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [10**9]}, "no token"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"echo": True}, "echo is not supported"),
        ({"suffix": "x"}, "suffix is not supported"),
        ({"best_of": 3}, "best_of is not supported"),
        ({"logprobs": 5}, "logprobs"),
        ({"seed": 2**80}, "seed"),
        ({"grammar": "x"}, "grammar is not supported"),
    ],
    ids=lambda value: None if isinstance(value, str) else str(value)[:24],
)
def test_what_is_refused_is_named(stage, fields, says):
    scene = stage([])
    answer = _ask(scene, scene.open(), **{"prompt": "go", **fields})
    assert answer.status == 400
    assert says in answer.error["message"]


def test_the_real_client(stage, spell, words):
    openai = pytest.importorskip("openai")
    scene = stage([spell.bytewise("ab" + words.END)] * 2)
    session = scene.open()

    async def main():
        async with (
            scene.gateway.serve() as url,
            openai.AsyncOpenAI(api_key=session.key, base_url=url) as client,
        ):
            fields = {"model": "tiny", "prompt": "go"}
            plain = await client.completions.create(**fields)
            stream = await client.completions.create(**fields, stream=True)
            return plain.choices[0].text, "".join([c.choices[0].text async for c in stream])

    assert asyncio.run(main()) == ("ab", "ab")
