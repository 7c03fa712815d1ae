"""The Responses API: several items of one turn are one turn again, token for token."""

import asyncio
import json

import pytest

from agentgym_rl.config import GatewayConfig
from tests.kit.cases import cases

PATH = "/v1/responses"
ASKED = [{"role": "system", "content": "Solve."}, {"role": "user", "content": "What is 3*4?"}]


@pytest.fixture
def tool(words):
    return {"type": "function", "strict": True, **words.CALCULATOR["function"]}


def _ask(scene, session, **fields):
    return asyncio.run(scene.post(session, path=PATH, **fields))


def _answers(output, text="12"):
    """What a client says next: an answer to each call, or a message."""
    calls = [item["call_id"] for item in output if item["type"] == "function_call"]
    answers = [{"type": "function_call_output", "call_id": i, "output": text} for i in calls]
    return answers or [{"role": "user", "content": text}]


def _play(scene, session, turns, *, echo, **fields):
    """Converse for some turns, with everything sent again, or only what is new."""
    said, previous, outputs = list(ASKED), None, []
    for _ in range(turns):
        response = _response(
            _ask(scene, session, input=said, previous_response_id=previous, **fields)
        )
        outputs.append(response["output"])
        if echo is None:
            said, previous = _answers(response["output"]), response["id"]
        else:
            said = [*said, *echo(response["output"]), *_answers(response["output"])]
    return outputs


def _response(answer):
    assert answer.status == 200, answer.data
    if answer.headers["content-type"] == "application/json":
        return answer.body
    assert answer.typed_events[-1]["type"] == "response.completed"
    return answer.typed_events[-1]["response"]


def _without_ids(output):
    return [{k: v for k, v in item.items() if k not in ("id", "status")} for item in output]


def _plain_texts(output):
    """As clients do that keep a text and no parts."""
    return [
        {"role": "assistant", "content": item["content"][0]["text"]}
        if item["type"] == "message"
        else item
        for item in output
    ]


def _reversed(output):
    return output[::-1]


ECHOES = [None, list, _without_ids, _plain_texts]


@cases("stream", [False, True])
@cases("how", ["canonical", "bytewise"])
@cases("echo", ECHOES, ids=["previous", "echo", "no_ids", "plain"])
def test_a_tool_episode_is_one_exact_row(stage, spell, words, tool, echo, how, stream):
    two = f"Let mé see.\n{words.CALL}\n{words.CALL}"
    mixed = f"{words.CALL}\nHm.\n{words.CALL}"
    texts = [words.CALL, two, mixed, "One moment.", words.ANSWER]
    scene = stage([getattr(spell, how)(text + words.END) for text in texts])
    session = scene.open()
    outputs = _play(scene, session, 5, echo=echo, tools=[tool], stream=stream)
    kinds = [[item["type"] for item in output] for output in outputs]
    call = "function_call"
    assert kinds == [
        [call],
        ["message", call, call],
        [call, "message", call],
        ["message"],
        ["message"],
    ]
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0
    assert record.counters["tool_calls"] == 5


def test_the_prompt_is_that_of_chat_completions(stage, spell, words, tool):
    scene = stage(lambda _: spell.canonical(words.ANSWER + words.END))
    chat, responses = scene.open(), scene.open()
    tools = [words.CALCULATOR]
    asyncio.run(scene.post(chat, messages=words.FIRST, tools=tools))
    _ask(scene, responses, input="What is 3*4?", instructions="Solve.", tools=[tool])
    _ask(
        scene, responses, input=[{"role": "developer", "content": "Solve."}, ASKED[1]], tools=[tool]
    )
    prompts = [entry.prompt for entry in scene.engine.journal]
    assert prompts[0] == prompts[1] == prompts[2]


def test_the_story_of_a_session_is_chat_messages(stage, spell, words, tool):
    scene = stage([spell.canonical(text + words.END) for text in (words.CALL, words.ANSWER)])
    session = scene.open()
    _play(scene, session, 2, echo=None, tools=[tool], instructions="Be brief.")
    messages = scene.gateway.close_session(session).messages
    roles = [message["role"] for message in messages]
    assert roles == ["system", "system", "user", "assistant", "tool", "assistant"]
    assert messages[4] == {"role": "tool", "tool_call_id": "call_0_0", "content": "12"}


def test_calls_answered_one_by_one_are_still_one_turn(stage, spell, words, tool):
    scene = stage([spell.canonical(text + words.END) for text in (words.CALL * 2, words.ANSWER)])
    session = scene.open()
    one, two = _response(_ask(scene, session, input=ASKED, tools=[tool]))["output"]
    said = [*ASKED, one, *_answers([one]), two, *_answers([two])]
    _ask(scene, session, input=said, tools=[tool])
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0


@pytest.mark.parametrize("echo", [list, _without_ids])
def test_two_turns_in_a_row_stay_two(stage, spell, words, echo):
    scene = stage([spell.canonical(text + words.END) for text in ("One.", "Two.", "Three.")])
    session, said = scene.open(), list(ASKED)
    for _ in range(3):
        said += echo(_response(_ask(scene, session, input=said))["output"])
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0


@pytest.mark.parametrize("names_previous", [False, True])
def test_replies_that_say_the_same_are_told_apart(stage, spell, words, names_previous):
    """They were sampled as other tokens; ids say which of them a client goes on with."""
    first = [spell.canonical("Yes." + words.END), spell.bytewise("Yes." + words.END)]
    scene = stage([*first, spell.canonical(words.ANSWER + words.END)])
    session = scene.open()
    one, _ = [_ask(scene, session, input=ASKED).body for _ in first]
    more = {"role": "user", "content": "Sure?"}
    if names_previous:
        _ask(scene, session, input=[more], previous_response_id=one["id"])
    else:
        _ask(scene, session, input=[*ASKED, *one["output"], more])
    stands_on = scene.engine.journal[2].prompt
    assert list(stands_on[len(scene.engine.journal[0].prompt) :][: len(first[0])]) == first[0]
    assert session.counters["ambiguous_echoes"] == 0


def test_an_edited_item_is_a_fork(stage, spell, words, tool):
    scene = stage([spell.canonical(text + words.END) for text in (words.CALL, words.ANSWER)])
    session = scene.open()

    def edited(output):
        return [{**item, "arguments": '{"expression": "3*5"}'} for item in output]

    _play(scene, session, 2, echo=edited, tools=[tool])
    assert scene.gateway.close_session(session).counters["forks_args_edit"] == 1


def test_a_reply_of_nothing_is_an_empty_message(stage, spell, words):
    scene = stage([spell.canonical(words.END), spell.canonical(words.ANSWER + words.END)])
    session = scene.open()
    outputs = _play(scene, session, 2, echo=list)
    assert [part["text"] for part in outputs[0][0]["content"]] == [""]
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)


def test_a_reply_that_is_cut_is_incomplete(stage, spell, words):
    scene = stage(lambda _: spell.bytewise(words.ANSWER + words.END))
    session = scene.open()
    plain = _ask(scene, session, input=ASKED, max_output_tokens=4).body
    events = _ask(scene, session, input=ASKED, max_output_tokens=4, stream=True).typed_events
    assert events[-1]["type"] == "response.incomplete"
    for response in (plain, events[-1]["response"]):
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["output"][0]["status"] == "incomplete"
        assert response["usage"]["output_tokens"] == 4


@pytest.mark.parametrize("parallel", [True, False])
def test_parallel_calls_are_returned_or_not(stage, spell, words, tool, parallel):
    scene = stage([spell.canonical(words.CALL * 2 + words.END)])
    fields = {"input": ASKED, "tools": [tool], "parallel_tool_calls": parallel}
    output = _ask(scene, scene.open(), **fields).body["output"]
    assert len(output) == 1 + parallel


def test_instructions_are_of_one_request(stage, spell, words):
    scene = stage(lambda _: spell.canonical(words.ANSWER + words.END))
    session = scene.open()
    first = _ask(scene, session, input="Hi", instructions="Sing.").body["id"]
    then = {"input": "Go on", "previous_response_id": first}
    _ask(scene, session, **then, instructions="Sing.")
    assert session.counters["forks"] == 0
    _ask(scene, session, **then, instructions="Dance.")
    _ask(scene, session, **then)
    roles = [[m["role"] for m in session._messages]]
    assert roles == [["user", "assistant", "user", "assistant"]]


def test_a_stream_tells_its_items_in_order(stage, spell, words, tool):
    scene = stage([spell.bytewise("Hm. " + words.CALL + words.END)])
    events = _ask(scene, scene.open(), input=ASKED, tools=[tool], stream=True).typed_events
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    names = [event["type"].removeprefix("response.") for event in events]
    text = ["output_text.delta"] * 3 + ["output_text.done"]
    arguments = ["function_call_arguments.delta", "function_call_arguments.done"]
    assert names == [
        *("created", "in_progress", "output_item.added", "content_part.added", *text),
        *("content_part.done", "output_item.done", "output_item.added", *arguments),
        *("output_item.done", "completed"),
    ]
    done = [event["item"] for event in events if event["type"].endswith("output_item.done")]
    assert done == events[-1]["response"]["output"]


def test_a_stream_says_what_a_plain_reply_does(stage, spell, words, tool):
    text = f"Let mé see.\n{words.CALL}\nMore.\n{words.CALL}{words.END}"
    scene = stage([spell.bytewise(text)] * 2)
    fields = {"input": ASKED, "tools": [tool], "metadata": {"a": "b"}, "user": "me"}
    plain, streamed = [
        _response(_ask(scene, scene.open(), **fields, stream=stream)) for stream in (False, True)
    ]
    assert _comparable(streamed) == _comparable(plain)


def _comparable(response):
    """Without what differs between any two responses."""
    text = json.dumps({**response, "created_at": 0, "completed_at": 0})
    return json.loads(text.replace(response["id"].removeprefix("resp_"), "TURN"))


def test_the_turn_is_recorded_before_the_response_is_complete(stage, spell, words):
    scene = stage([spell.bytewise("ab" + words.END)])
    session, turns_at = scene.open(), {}
    app = scene.gateway.app

    async def spying(scope, receive, send):
        async def spy(message):
            if b"response.completed" in message.get("body", b""):
                turns_at["end"] = session.num_turns
            await send(message)

        await app(scope, receive, spy)

    scene.gateway.app = spying
    _ask(scene, session, input="Hi", stream=True)
    assert turns_at == {"end": 1}


def test_an_engine_that_fails_in_the_middle_fails_the_response(stage, spell, words):
    scene = stage([words.Say(spell.bytewise("ab"), fail_after=1)])
    session = scene.open()
    events = _ask(scene, session, input="Hi", stream=True).typed_events
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    failed, error = events[-2:]
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"]["code"] == "server_error"
    assert error["type"] == "error"
    assert error["code"] == error["error"]["code"] == "engine_failed"
    missing = _ask(scene, session, input="Hi", previous_response_id=failed["response"]["id"])
    assert missing.error["code"] == "previous_response_not_found"


def test_a_response_that_never_began_does_not_fail_but_is_an_error(stage, spell, words):
    say = words.Say(spell.bytewise("ab"), delay_s=0.1, fail_after=0)
    scene = stage([say], config=GatewayConfig(keep_alive_s=0.03))
    answer = _ask(scene, scene.open(), input="Hi", stream=True)
    events = [line for line in answer.data.splitlines() if line and not line.startswith(b":")]
    assert events[0] == b"event: error"
    assert json.loads(events[1].removeprefix(b"data: "))["sequence_number"] == 0
    assert len(events) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_sent_again_gets_the_reply_that_was_made(stage, spell, words, stream):
    scene = stage(lambda _: spell.bytewise("ab" + words.END))
    session, retry = scene.open(), {"x-stainless-retry-count": "1"}
    first = _ask(scene, session, input="Hi", stream=stream)
    again = _ask(scene, session, input="Hi", stream=stream, headers=retry)
    assert again.data == first.data
    assert len(scene.engine.journal) == 1
