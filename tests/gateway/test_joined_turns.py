"""Clients that send several turns back as one message, with the results of all calls behind it."""

import asyncio

import pytest

from agentgym_rl.config import GatewayConfig
from tests.kit.cases import cases

AND = {"role": "user", "content": "And?"}


def _call(number):
    arguments = f'{{"expression": "{number}"}}'
    return f'<tool_call>\n{{"name": "calculator", "arguments": {arguments}}}\n</tool_call>'


TALKS = {
    "two calls": ["Let me look.\n" + _call(1), _call(2)],
    "three, each with a text": ["One. " + _call(1), "Two.\n" + _call(2), "Three: " + _call(3)],
    "several in a turn": [_call(1) + "\n" + _call(2), "And " + _call(3) + "\n" + _call(4)],
    "with the answer": ["Let me look. " + _call(1), _call(2), "It is 12."],
    "one call and the answer": [_call(1), "It is 12."],
    "equal texts": ["So. " + _call(1), "So. " + _call(2), "So."],
}


def _result(call, text):
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


def _answers(reply):
    return [_result(call, f"r{call['id']}") for call in reply.get("tool_calls", ())]


def _joined(replies, between=" "):
    """The message of Mastra 0.24: the texts, all calls, and then all results."""
    said = between.join(reply["content"] for reply in replies if reply["content"])
    calls = [call for reply in replies for call in reply.get("tool_calls", ())]
    message = {"role": "assistant", "content": said, "tool_calls": calls}
    return [message, *_answers(message)]


@pytest.fixture
def play(stage, spell, words):
    def play(said, joined):
        """Play a conversation that sends its turns back one by one, and then `joined`, twice."""
        scene = stage([spell.bytewise(text + words.END) for text in [*said, "Bye.", "So."]])
        session = scene.open()

        def post(messages):
            fields = {"messages": messages, "tools": [words.CALCULATOR]}
            answer = asyncio.run(scene.post(session, **fields))
            assert answer.status == 200, answer.body
            return answer.message

        messages, replies = list(words.FIRST), []
        for _ in said:
            replies.append(post(messages))
            messages += [replies[-1], *(_answers(replies[-1]) or [AND])]
        sent = [*words.FIRST, *joined(replies)]
        sent += [] if sent[-1]["role"] == "tool" and "tool_calls" in replies[-1] else [AND]
        last = post(sent)
        post([*sent, last, AND])
        record = scene.gateway.close_session(session)
        words.check_exact(record.rows, scene.engine.journal, num_rows=len(record.rows))
        return record

    return play


@cases("name", TALKS)
@cases("between", ["", " ", "\n\n"])
@pytest.mark.slow
def test_joined_turns_are_the_turns_that_were_recorded(play, name, between):
    record = play(TALKS[name], lambda replies: _joined(replies, between))
    assert (len(record.rows), record.counters["forks"]) == (1, 0)
    assert sum(message["role"] == "assistant" for message in record.messages) == record.num_turns


def _changed(change):
    def joined(replies):
        message, *results = _joined(replies)
        return change(message, results)

    return joined


def _other_result(message, results):
    return [message, results[0] | {"content": "another"}, *results[1:]]


def _other_arguments(message, results):
    call = message["tool_calls"][0]
    call = call | {"function": call["function"] | {"arguments": '{"expression": "9"}'}}
    return [message | {"tool_calls": [call, *message["tool_calls"][1:]]}, *results]


OTHERS = {
    "another result": _other_result,
    "a result is missing": lambda message, results: [message, *results[1:]],
    "other arguments": _other_arguments,
    "more text": lambda message, results: [message | {"content": "One. Hm. Two."}, *results],
    "less text": lambda message, results: [message | {"content": "Two."}, *results],
    "another order": lambda message, results: [
        message | {"tool_calls": message["tool_calls"][::-1]},
        *results,
    ],
    "a message between": lambda message, results: [message, AND, *results],
}


@cases("name", OTHERS)
def test_what_was_not_recorded_stays_as_the_client_sent_it(play, name):
    record = play(["One. " + _call(1), "Two. " + _call(2)], _changed(OTHERS[name]))
    assert len(record.rows) == 2
    assert sum(message["role"] == "assistant" for message in record.messages) == 3


def test_the_record_shows_the_conversation_that_the_model_saw(play):
    record = play(TALKS["two calls"], _joined)
    roles = [message["role"] for message in record.messages]
    turns = ["assistant", "tool", "assistant", "tool", "assistant", "user", "assistant"]
    assert roles == ["system", "user", *turns]


@pytest.mark.parametrize(("edited", "rows"), [("fork", 2), ("trust", 1)])
def test_a_client_that_drops_the_text_beside_a_call_is_one_row_if_trusted(
    stage, spell, words, edited, rows
):
    """Semantic Kernel and CrewAI do."""
    said = [spell.bytewise(text + words.END) for text in ("Look. " + _call(1), "Bye.")]
    scene = stage(said, config=GatewayConfig(edited_calls=edited))
    session = scene.open()
    fields = {"messages": words.FIRST, "tools": [words.CALCULATOR]}
    reply = asyncio.run(scene.post(session, **fields)).message
    without = {"role": "assistant", "tool_calls": reply["tool_calls"]}
    fields["messages"] = [*words.FIRST, without, *_answers(reply)]
    assert asyncio.run(scene.post(session, **fields)).status == 200
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=rows)
    assert record.counters["trusted_edits"] == (edited == "trust")
