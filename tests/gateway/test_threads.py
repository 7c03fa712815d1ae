"""Threads of Anthropic Messages: conversations that the session keeps between the turns."""

import asyncio

import pytest
from arl_dialects.stored import Threads

from tests.kit.cases import cases

ASK = {
    "max_tokens": 300,
    "system": [{"type": "text", "text": "Solve."}],
    "tools": [{"name": "calculator", "input_schema": {"type": "object", "properties": {}}}],
}
QUESTION = {"role": "user", "content": "What is 3*4?"}
CREATE = {"type": "create"}


def _following(reply):
    return {"type": "continue", "previous_message_id": reply["id"]}


def _results(reply, text="12"):
    calls = (block for block in reply["content"] if block["type"] == "tool_use")
    blocks = [{"type": "tool_result", "tool_use_id": call["id"], "content": text} for call in calls]
    return [{"role": "user", "content": blocks or text}]


@pytest.fixture
def scene(stage, spell, words):
    said = ["Let me see. " + words.CALL, words.CALL + words.CALL, words.ANSWER, "Bye.", "So."]
    return stage([spell.bytewise(text + words.END) for text in said])


@pytest.fixture
def always(stage, spell, words):
    return stage(lambda _: spell.canonical(words.ANSWER + words.END))


def _post(scene, session, **fields):
    return asyncio.run(scene.post(session, path="/v1/messages", **{"max_tokens": 300, **fields}))


def test_a_continued_thread_is_the_conversation_sent_whole(stage, spell, words, scene):
    session = scene.open()
    reply = _post(scene, session, **ASK, messages=[QUESTION], thread=CREATE).body
    said = [QUESTION]
    prompts = []
    for _ in range(3):
        new, before = _results(reply), reply
        said += [{"role": "assistant", "content": reply["content"]}, *new]
        reply = _post(scene, session, messages=new, thread=_following(before)).body
        count = {name: value for name, value in ASK.items() if name != "max_tokens"}
        whole = asyncio.run(
            scene.post(session, path="/v1/messages/count_tokens", messages=said, **count)
        )
        prompts.append((whole.body["input_tokens"], reply["usage"]["input_tokens"]))
    assert all(counted == asked for counted, asked in prompts)
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert (len(record.rows), record.counters["forks"], record.num_turns) == (1, 0, 4)


def test_a_reply_may_be_continued_again_and_a_stream_too(scene):
    session = scene.open()
    first = _post(scene, session, **ASK, messages=[QUESTION], thread=CREATE, stream=True)
    events = first.typed_events
    (begun,) = [event["message"] for event in events if event["type"] == "message_start"]
    blocks = [event["content_block"] for event in events if "content_block" in event]
    (call,) = [block for block in blocks if block["type"] == "tool_use"]
    for text in ("12", "13"):
        new = _results({"content": [call]}, text)
        assert _post(scene, session, messages=new, thread=_following(begun)).status == 200
    record = scene.gateway.close_session(session)
    assert (len(record.rows), record.counters["forks_history_edit"]) == (2, 1)


def test_a_given_beginning_and_its_reply_are_one_message(scene):
    session = scene.open()
    begun = [QUESTION, {"role": "assistant", "content": "Well:"}]
    first = _post(scene, session, messages=begun, thread=CREATE).body
    _post(scene, session, messages=_results(first), thread=_following(first))
    record = scene.gateway.close_session(session)
    assert (len(record.rows), record.counters["forks"]) == (1, 0)


@cases(
    "fields, status, code",
    [
        ({"thread": {"type": "continue", "previous_message_id": "msg_1"}}, 404, "thread_not_found"),
        ({"system": "Be brief."}, 400, "thread_fingerprint_mismatch"),
        ({"tools": []}, 400, "thread_fingerprint_mismatch"),
        ({"system": ASK["system"], "tools": ASK["tools"]}, 200, None),
        ({"thread": {"type": "continue"}}, 400, None),
        ({"thread": {"type": "resume"}}, 400, None),
        ({"messages": []}, 400, None),
    ],
    ids=["unknown", "system", "tools", "the same", "no id", "no such thread", "nothing new"],
)
def test_errors_have_the_codes_after_which_clients_send_all(always, fields, status, code):
    scene = always
    session = scene.open()
    first = _post(scene, session, **ASK, messages=[QUESTION], thread=CREATE).body
    asked = {"messages": _results(first), "thread": _following(first)} | fields
    answer = _post(scene, session, **asked)
    assert answer.status == status, answer.body
    assert answer.body.get("error", {}).get("details", {}).get("error_code") == code


def test_only_a_reply_of_a_thread_can_be_continued_and_only_by_its_session(scene):
    session, other = scene.open(), scene.open()
    plain = _post(scene, session, **ASK, messages=[QUESTION]).body
    thread = _post(scene, session, **ASK, messages=[QUESTION], thread=CREATE).body
    for who, reply in ((session, plain), (other, thread)):
        answer = _post(scene, who, messages=_results(reply), thread=_following(reply))
        assert answer.body["error"]["details"] == {"error_code": "thread_not_found"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("forgets", [False, True])
def test_the_sdk_runs_its_tools_in_a_thread(scene, words, stream, forgets):
    anthropic = pytest.importorskip("anthropic", minversion="2.14")
    session = scene.open()

    @anthropic.beta_async_tool
    async def calculator(expression: str) -> str:
        """Do one arithmetic operation."""
        if forgets:
            session.state(Threads).__init__()  # the SDK then sends the whole conversation
        return str(len(expression))

    async def play():
        async with scene.gateway.serve() as url:
            base = url.removesuffix("/v1")
            async with anthropic.AsyncAnthropic(api_key=session.key, base_url=base) as client:
                asked = {"model": "tiny", "messages": [QUESTION], "max_tokens": 300}
                tools = [calculator]
                runner = client.beta.messages.tool_runner(**asked, tools=tools, stream=stream)
                return await runner.until_done()

    said = asyncio.run(play())
    assert said.content[0].text == words.ANSWER
    assert (session.state(Threads).get(said.id) is None) == forgets  # it then asks without a thread
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert (len(record.rows), record.num_turns, record.counters["forks"]) == (1, 3, 0)
    assert record.messages[1]["role"] == "assistant"
