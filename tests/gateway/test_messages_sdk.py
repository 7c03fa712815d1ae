"""Anthropic's own client over real HTTP."""

import asyncio
import contextlib

import pytest

from agentgym_rl.config import GatewayConfig
from tests.kit.cases import cases

anthropic = pytest.importorskip("anthropic")

CALCULATOR = {
    "name": "calculator",
    "description": "Do one arithmetic operation.",
    "input_schema": {"type": "object", "properties": {"expression": {"type": "string"}}},
}
ASK = {
    "model": "tiny",
    "max_tokens": 300,
    "system": "Solve.",
    "tools": [CALCULATOR],
    "messages": [{"role": "user", "content": "What is 3*4?"}],
}


@contextlib.asynccontextmanager
async def _client(scene, session, **options):
    async with scene.gateway.serve() as url:
        base = url.removesuffix("/v1")
        options = {"max_retries": 0, **options}
        async with anthropic.AsyncAnthropic(api_key=session.key, base_url=base, **options) as one:
            yield one


def _run(scene, session, use, **options):
    async def main():
        async with _client(scene, session, **options) as client:
            return await use(client)

    return asyncio.run(main())


async def _ask(client, stream, **fields):
    if not stream:
        return await client.messages.create(**fields)
    async with client.messages.stream(**fields) as events:
        return await events.get_final_message()


def _answers(reply, text):
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": text}
        for block in reply.content
        if block.type == "tool_use"
    ]
    return {"role": "user", "content": results or text}


async def _converse(client, turns, *, stream, text="12", **fields):
    """Replies, and for each the tokens that were counted before it was asked for."""
    replies, counts = [], []
    fields = {**ASK, **fields}
    messages = list(fields.pop("messages"))
    for _ in range(turns):
        asked = {k: v for k, v in fields.items() if k not in ("max_tokens", "stop_sequences")}
        count = await client.messages.count_tokens(messages=messages, **asked)
        reply = await _ask(client, stream, messages=messages, **fields)
        replies.append(reply)
        counts.append(count.input_tokens)
        messages += [{"role": "assistant", "content": reply.content}, _answers(reply, text)]
    return replies, counts


@pytest.mark.parametrize("stream", [False, True])
def test_an_episode_is_one_exact_row_and_counts_are_exact(stage, spell, words, stream):
    said = ["Let mé see. " + words.CALL, words.CALL + "\n" + words.CALL, words.ANSWER, "Bye."]
    scene = stage([spell.bytewise(text + words.END) for text in said])
    session = scene.open()
    replies, counts = _run(scene, session, lambda c: _converse(c, 4, stream=stream))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0
    assert counts == [reply.usage.input_tokens for reply in replies]
    assert counts == [len(entry.prompt) for entry in scene.engine.journal]
    assert [r.stop_reason for r in replies] == ["tool_use", "tool_use", "end_turn", "end_turn"]
    assert [len(entry.token_ids) for entry in scene.engine.journal] == [
        reply.usage.output_tokens for reply in replies
    ]


@cases(
    "text",
    [
        "Hm. {call} and {call} done.",
        "",
        "plain é ✓ text",
        "<tool_call>\nnonsense\n</tool_call>",
        '<tool_call>\n{{"name": "calculator", "arguments": [1, 1e999]}}\n</tool_call>',
        '<tool_call>\n{{"name": "calculator", "arguments": {{"_raw": "x"}}}}\n</tool_call>',
        '<tool_call>\n{{"name": "calculator", "arguments": {{"a":  1.0, "b": "\\u00e9"}}}}\n'
        "</tool_call>",
    ],
    ids=["mixed", "empty", "plain", "nonsense", "array", "raw", "numbers"],
)
def test_a_stream_adds_up_to_the_plain_reply_and_both_come_back_as_they_were(
    stage, spell, words, text
):
    ids = spell.bytewise(text.format(call=words.CALL) + words.END)
    last = spell.canonical("Ok." + words.END)
    scene = stage([ids, last, ids, last])
    plain, streamed = scene.open(), scene.open()
    replies = [
        _run(scene, session, lambda c, s=stream: _converse(c, 2, stream=s))[0][0]
        for session, stream in ((plain, False), (streamed, True))
    ]
    dumps = [r.model_dump(exclude={"id"}, exclude_none=True) for r in replies]
    assert dumps[1] == dumps[0]
    for session in (plain, streamed):
        record = scene.gateway.close_session(session)
        assert (len(record.rows), record.counters["forks"]) == (1, 0)


def test_what_ended_a_reply(stage, spell, words):
    scene = stage([spell.bytewise(text + words.END) for text in ("one two", "one two", "one")])
    session = scene.open()

    async def ask(client):
        stopped = await client.messages.create(**ASK, stop_sequences=["zzz", " two"])
        cut = await client.messages.create(**{**ASK, "max_tokens": 2})
        return [stopped, cut, await client.messages.create(**ASK)]

    replies = _run(scene, session, ask)
    found = [(r.stop_reason, r.stop_sequence, r.content[0].text) for r in replies]
    assert found == [
        ("stop_sequence", " two", "one"),
        ("max_tokens", None, "on"),
        ("end_turn", None, "one"),
    ]


def test_errors_are_the_clients_own(stage, spell, words):
    scene = stage([words.Say(spell.bytewise("ab"), fail_after=0)], max_model_len=200)
    session, ids = scene.open(), []

    async def ask(client):
        outcomes = []
        for fields in (
            {"messages": [{"role": "user", "content": "x" * 4000}]},
            {"extra_body": {"top_k": 0.5}},
            {"api_key": "sk-arl-1"},
            {},
            {"closed": True},
        ):
            if fields.pop("closed", False):
                scene.gateway.close_session(session)
            asking = client.with_options(api_key=fields.pop("api_key", session.key))
            try:
                await asking.messages.create(**{**ASK, **fields})
            except anthropic.APIStatusError as error:
                ids.append(error.request_id)
                outcomes.append((type(error).__name__, error.body["error"]["type"], error.message))
        return outcomes

    outcomes = _run(scene, session, ask, max_retries=3)
    assert [outcome[:2] for outcome in outcomes] == [
        ("BadRequestError", "invalid_request_error"),
        ("BadRequestError", "invalid_request_error"),
        ("AuthenticationError", "authentication_error"),
        ("ServiceUnavailableError", "api_error"),
        ("APIStatusError", "invalid_request_error"),
    ]
    assert len({id for id in ids if id.startswith("req_")}) == 5
    assert "prompt is too long" in outcomes[0][2]
    assert len(scene.engine.journal) == 1  # asked once, though the client would retry


def test_an_error_in_the_middle_of_a_stream_is_raised(stage, spell, words):
    scene = stage([words.Say(spell.bytewise("ab"), fail_after=1)])
    session = scene.open()

    async def ask(client):
        with pytest.raises(anthropic.APIStatusError, match="after 1 tokens"):
            await _ask(client, True, **ASK)

    _run(scene, session, ask)
    assert scene.gateway.close_session(session).rows == []


def test_a_retry_gets_the_answer_that_was_being_made(stage, spell, words):
    scene = stage([words.Say(spell.bytewise("ab" + words.END), delay_s=0.2)])
    session = scene.open()

    async def ask(client):
        return await client.with_options(timeout=0.35).messages.create(**ASK)

    reply = _run(scene, session, ask, max_retries=2)
    assert reply.content[0].text == "ab"
    assert session.counters["joined_retries"] >= 1
    assert len(scene.engine.journal) == 1


def test_counting_leaves_no_trace(stage, spell, words):
    scene = stage([spell.bytewise(words.ANSWER + words.END)])
    session = scene.open()

    async def ask(client):
        fields = {k: v for k, v in ASK.items() if k != "max_tokens"}
        other = {**fields, "system": "Else.", "tools": []}
        counts = [(await client.messages.count_tokens(**f)).input_tokens for f in (other, fields)]
        await client.messages.create(**ASK)
        return counts

    counts = _run(scene, session, ask)
    assert counts[1] == len(scene.engine.journal[0].prompt) > counts[0]
    record = scene.gateway.close_session(session)
    assert (record.num_turns, record.counters["forks"], len(record.rows)) == (1, 0, 1)


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_signed_blocks_and_need_not_come_back(stage, spell, words, stream):
    thought = "<think>\nHm, 3*4.\n</think>\n\n"
    said = [thought + words.CALL, thought + "Well. " + words.CALL, words.ANSWER]
    config = GatewayConfig(reasoning_parser="think")
    scene = stage([spell.bytewise(text + words.END) for text in said], config=config)
    session = scene.open()
    replies, counts = _run(scene, session, lambda c: _converse(c, 3, stream=stream))
    first = replies[0].content
    assert [block.type for block in first] == ["thinking", "tool_use"]
    assert first[0].thinking.strip() == "Hm, 3*4."
    assert session.number_of(first[0].signature) == 0
    assert counts == [len(entry.prompt) for entry in scene.engine.journal]
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0
