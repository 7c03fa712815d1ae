"""Stored responses and conversations: read, referred to, deleted; and prompts that are cut."""

import asyncio
import json

import pytest
from arl_dialects.stored import Conversations

from agentgym_rl.gateway import AgentClients
from tests.kit.cases import cases

PATH = "/v1/responses"
CONVERSATIONS = "/v1/conversations"


@pytest.fixture
def scene(stage, spell, words):
    return stage(lambda _: spell.bytewise(words.ANSWER + words.END), max_model_len=100_000)


def _ask(scene, session, **fields):
    return asyncio.run(scene.post(session, path=PATH, **{"input": "Hi", **fields}))


def _do(scene, session, method, path, query="", **fields):
    headers = {"authorization": f"Bearer {session.key}"}
    data = json.dumps(fields).encode() if fields else b""
    return asyncio.run(scene.request(method, path, data, headers, query=query))


def test_a_stored_response_is_read_listed_and_deleted(scene):
    session = scene.open()
    first = _ask(scene, session).body
    second = _ask(scene, session, input="Go on", previous_response_id=first["id"]).body
    path = f"{PATH}/{second['id']}"
    assert _do(scene, session, "GET", path).body == second
    listed = _do(scene, session, "GET", f"{path}/input_items", "order=asc").body
    assert [item["role"] for item in listed["data"]] == ["user", "assistant", "user"]
    assert listed["data"][1] == first["output"][0]
    gone = _do(scene, session, "DELETE", path)
    assert gone.body == {"id": second["id"], "object": "response", "deleted": True}
    for method in ("GET", "DELETE"):
        answer = _do(scene, session, method, path)
        assert (answer.status, answer.error["code"]) == (404, "response_not_found")
    again = _ask(scene, session, previous_response_id=second["id"])
    assert again.error["code"] == "previous_response_not_found"


def test_the_tokens_of_a_request_are_counted_as_it_would_get_them(scene):
    session = scene.open()
    count = f"{PATH}/input_tokens"
    asked = {"input": "Hi", "instructions": "Be brief."}
    first = _do(scene, session, "POST", count, **asked).body
    answer = _ask(scene, session, **asked).body
    assert first == {
        "object": "response.input_tokens",
        "input_tokens": answer["usage"]["input_tokens"],
    }
    more = {"input": "And?", "previous_response_id": answer["id"]}
    counted = _do(scene, session, "POST", count, **more).body["input_tokens"]
    assert counted == _ask(scene, session, **more).body["usage"]["input_tokens"]
    assert _do(scene, session, "POST", count, input=[]).error["param"] == "input"
    assert session.num_turns == 2


def test_what_only_the_service_can_do_is_refused_by_name(scene):
    session = scene.open()
    refused = _do(scene, session, "POST", f"{PATH}/compact", input="Hi")
    assert (refused.status, refused.error["param"]) == (400, "compact")
    offer = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-key": "x"}
    for path in (PATH, "/v1/chat/completions", "/v1/realtime"):
        answer = asyncio.run(scene.request("GET", path, b"", offer))
        assert (answer.status, answer.error["code"]) == (426, "websocket_not_supported")
        assert path in answer.error["message"]


def test_another_session_sees_nothing(scene):
    first = _ask(scene, scene.open()).body["id"]
    other = scene.open()
    assert _do(scene, other, "GET", f"{PATH}/{first}").status == 404
    assert _do(scene, other, "GET", f"{PATH}/{first}/input_items").status == 404
    assert _ask(scene, scene.open(), store=False).body["id"]


def test_pages(scene):
    session = scene.open()
    said = [{"role": "user", "content": str(number)} for number in range(5)]
    path = f"{PATH}/{_ask(scene, session, input=said).body['id']}/input_items"
    pages, after = [], ""
    while True:
        page = _do(scene, session, "GET", path, f"limit=2&after={after}").body
        pages.append([item["content"][0]["text"] for item in page["data"]])
        after = page["last_id"]
        if not page["has_more"]:
            break
    assert pages == [["4", "3"], ["2", "1"], ["0"]]
    for wrong in ("limit=0", "limit=x", "order=up", "after=nothing"):
        answer = _do(scene, session, "GET", path, wrong)
        assert (answer.status, answer.error["param"]) == (400, wrong.split("=")[0])


def test_items_are_referred_to_and_make_one_row(stage, spell, words):
    texts = [f"Hm.\n{words.CALL}", "Well.", "Done."]
    scene = stage([spell.bytewise(text + words.END) for text in texts])
    session = scene.open()
    tools = [{"type": "function", **words.CALCULATOR["function"]}]
    said = [{"role": "user", "content": "What is 3*4?"}]
    for _ in texts:
        body = _ask(scene, session, input=said, tools=tools).body
        said += [{"type": "item_reference", "id": item["id"]} for item in body["output"]]
        calls = [item for item in body["output"] if item["type"] == "function_call"]
        said += [
            {"type": "function_call_output", "call_id": call["call_id"], "output": "12"}
            for call in calls
        ] or [{"role": "user", "content": "Go on"}]
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)


def test_an_item_that_is_not_there_is_named(scene):
    session = scene.open()
    kept = _ask(scene, session, store=False).body["output"][0]["id"]
    for id in (kept, "msg_1"):
        answer = _ask(scene, session, input=[{"type": "item_reference", "id": id}])
        assert (answer.status, answer.error["code"]) == (400, "item_not_found")
        assert id in answer.error["message"]


def test_a_conversation_grows_and_is_one_row(scene, words):
    session = scene.open()
    first = {"role": "user", "content": "One"}
    made = _do(scene, session, "POST", CONVERSATIONS, items=[first], metadata={"a": "b"}).body
    assert made["metadata"] == {"a": "b"}
    for conversation in (made["id"], {"id": made["id"]}):
        body = _ask(scene, session, input="Go on", conversation=conversation).body
        assert body["conversation"] == {"id": made["id"]}
    path = f"{CONVERSATIONS}/{made['id']}/items"
    items = _do(scene, session, "GET", path, "order=asc").body["data"]
    assert [item["role"] for item in items] == ["user", "user", "assistant", "user", "assistant"]
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)


def test_a_conversation_is_changed_and_deleted(scene):
    session = scene.open()
    path = f"{CONVERSATIONS}/{_do(scene, session, 'POST', CONVERSATIONS).body['id']}"
    added = [{"role": "user", "content": text} for text in ("A", "B")]
    ids = [
        item["id"]
        for item in _do(scene, session, "POST", f"{path}/items", items=added).body["data"]
    ]
    assert _do(scene, session, "GET", f"{path}/items/{ids[0]}").body["content"][0]["text"] == "A"
    assert _do(scene, session, "DELETE", f"{path}/items/{ids[0]}").status == 200
    assert _do(scene, session, "GET", f"{path}/items/{ids[0]}").status == 404
    assert _do(scene, session, "POST", path, metadata={"k": "v"}).body["metadata"] == {"k": "v"}
    assert _do(scene, session, "GET", path).body["object"] == "conversation"
    assert _do(scene, session, "DELETE", path).body["deleted"]
    assert _do(scene, session, "GET", path).error["code"] == "conversation_not_found"
    assert _ask(scene, session, conversation=path.rpartition("/")[2]).status == 404


@cases(
    "method, path, status",
    [
        ("PUT", f"{PATH}/x", 404),
        ("GET", CONVERSATIONS, 404),
        ("POST", f"{CONVERSATIONS}/x/y", 404),
        ("POST", f"{PATH}/x/cancel", 404),
        ("DELETE", f"{PATH}/x", 404),
        ("GET", PATH, 405),
    ],
)
def test_what_is_not_there_says_so(scene, method, path, status):
    assert _do(scene, scene.open(), method, path).status == status


def test_a_client_cannot_add_without_end(scene):
    session = scene.open()
    path = f"{CONVERSATIONS}/{_do(scene, session, 'POST', CONVERSATIONS).body['id']}/items"
    many = [{"role": "user", "content": "x"}] * 21
    assert _do(scene, session, "POST", path, items=many).error["param"] == "items"
    session.state(Conversations).room_bytes = 40
    answer = _do(scene, session, "POST", path, items=many[:1])
    assert "may add 40 bytes more" in answer.error["message"]


def test_the_sdk_reads_what_is_stored(scene):
    pytest.importorskip("openai")
    session = scene.open()

    async def main():
        async with scene.gateway.serve() as base_url, AgentClients(base_url) as clients:
            client = clients.for_session(session)
            held = await client.conversations.create(metadata={"a": "b"})
            said = await client.responses.create(model="m", input="Hi", conversation=held.id)
            same = await client.responses.retrieve(said.id)
            items = [item async for item in client.responses.input_items.list(said.id)]
            theirs = [item async for item in client.conversations.items.list(held.id)]
            await client.responses.delete(said.id)
            gone = await client.conversations.delete(held.id)
            return same.output_text, len(items), [item.type for item in theirs], gone.deleted

    text, count, kinds, deleted = asyncio.run(main())
    assert (text, count, kinds, deleted) == (
        "The answer is \\boxed{12}.", 1, ["message", "message"], True,
    )  # fmt: skip


# ------------------------------------------------------------------ truncation
def _turns(scene, session, count, **fields):
    said, statuses = [{"role": "user", "content": "Begin."}], []
    for number in range(count):
        answer = _ask(scene, session, input=said, instructions="Solve.", **fields)
        statuses.append(answer.status)
        if answer.status == 200:
            said += answer.body["output"]
        said.append({"role": "user", "content": f"Go on: {number} " + "word " * 5})
    return statuses


@cases("fields, most", [({}, 400), ({"truncation": "auto"}, 200)])
def test_the_oldest_messages_are_left_out_if_asked(stage, spell, words, fields, most):
    scene = stage(lambda _: spell.bytewise("Well." + words.END), max_model_len=700)
    session = scene.open(max_tokens=50)
    statuses = _turns(scene, session, 25, **fields)
    assert max(statuses) == most
    record = scene.gateway.close_session(session)
    cut = record.counters["truncated_turns"]
    if not fields:
        assert (cut, record.counters["overflows"] > 0) == (0, True)
        return
    assert cut > 1
    assert record.counters["overflows"] == 0
    # most turns go on from the one before: what was left out stays out until there is no room
    assert record.counters["forks"] == len(record.rows) - 1 < cut
    words.check_exact(record.rows, scene.engine.journal, num_rows=len(record.rows))
    last = scene.gateway._chat.text(scene.engine.journal[-1].prompt)
    assert "Solve." in last
    assert "Begin." not in last


def test_a_result_stays_with_its_call(stage, spell, words):
    scene = stage(lambda _: spell.bytewise(words.CALL + words.END), max_model_len=900)
    session = scene.open(max_tokens=200)
    tools = [{"type": "function", **words.CALCULATOR["function"]}]
    said = [{"role": "user", "content": "Begin."}]
    for _ in range(8):
        body = _ask(scene, session, input=said, tools=tools, truncation="auto").body
        said += body["output"]
        said += [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "12 " * 30}
            for item in body["output"]
            if item["type"] == "function_call"
        ]
    assert session.counters["truncated_turns"] > 0
    last = scene.gateway._chat.text(scene.engine.journal[-1].prompt)
    assert last.index("<tool_call>", last.index("</tools>")) < last.index("<tool_response>")


def test_a_message_that_is_too_long_alone_is_an_overflow(stage):
    scene = stage([], max_model_len=50)
    answer = _ask(scene, scene.open(), input="word " * 100, truncation="auto")
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
