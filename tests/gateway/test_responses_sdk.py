"""The Responses API through the real OpenAI client over real HTTP."""

import asyncio
import json

import pytest

from agentgym_rl.gateway import AgentClients
from tests.kit.cases import cases

openai = pytest.importorskip("openai")
ASKED = [{"role": "user", "content": "What is 3*4?"}]


@pytest.fixture
def fields(words):
    tool = {"type": "function", "strict": True, **words.CALCULATOR["function"]}
    return {"model": "tiny", "instructions": "Solve.", "tools": [tool]}


def _run(scene, session, use):
    async def main():
        async with scene.gateway.serve() as base_url, AgentClients(base_url) as clients:
            return await use(clients.for_session(session))

    return asyncio.run(main())


async def _created(client, **fields):
    return await client.responses.create(**fields)


async def _streamed(client, **fields):
    async with client.responses.stream(**fields) as stream:
        return await stream.get_final_response()


def _answers(response, text):
    calls = [item.call_id for item in response.output if item.type == "function_call"]
    answers = [{"type": "function_call_output", "call_id": i, "output": text} for i in calls]
    return answers or [{"role": "user", "content": text}]


@cases("ask", [_created, _streamed])
@cases("names_previous", [False, True])
def test_an_episode_is_one_exact_row(stage, spell, words, fields, ask, names_previous):
    texts = [words.CALL, f"Hm.\n{words.CALL * 2}", "Wait.", words.ANSWER]
    scene = stage([spell.bytewise(text + words.END) for text in texts])
    session = scene.open()

    async def converse(client):
        said, previous = list(ASKED), None
        for _ in texts:
            response = await ask(client, **fields, input=said, previous_response_id=previous)
            if names_previous:
                said, previous = _answers(response, "12"), response.id
            else:
                said += [*response.output, *_answers(response, "12")]
        return response

    assert _run(scene, session, converse).output_text == words.ANSWER
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert (record.counters["forks"], record.num_turns) == (0, 4)


def test_the_stream_helper_builds_what_a_plain_reply_is(stage, spell, words, fields):
    text = f"Let mé see.\n{words.CALL}\nMore.\n{words.CALL}{words.END}"
    scene = stage([spell.bytewise(text)] * 2)

    async def both(client):
        return [await ask(client, **fields, input=ASKED) for ask in (_created, _streamed)]

    plain, streamed = _run(scene, scene.open(), both)
    assert streamed.output_text == plain.output_text == "Let mé see.More."
    assert _comparable(streamed) == _comparable(plain)


def _comparable(response):
    """Without what differs between any two responses, and what the helper adds."""
    data = response.model_dump(mode="json", exclude={"created_at", "completed_at"})
    for item in data["output"]:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    turn = response.id.removeprefix("resp_")
    text = json.dumps(data).replace(turn, "TURN")
    for position in range(2):
        text = text.replace(f"call_{turn.rpartition('-')[2]}_{position}", f"call_{position}")
    return json.loads(text)


def test_all_that_is_sent_is_what_the_types_say(stage, spell, words, fields):
    from openai.types.responses import Response, ResponseStreamEvent
    from pydantic import TypeAdapter

    event_type = TypeAdapter(ResponseStreamEvent)
    text = spell.bytewise(f"Hm.\n{words.CALL}{words.END}")
    scene = stage([text, text, words.Say(text, fail_after=5)])
    session = scene.open()

    def ask(**more):
        asked = {"path": "/v1/responses", **fields, "input": ASKED, **more}
        return asyncio.run(scene.post(session, **asked))

    Response.model_validate_json(ask().data, strict=True)
    for answer in (ask(stream=True), ask(stream=True)):
        for event in answer.typed_events:
            read = event_type.validate_json(json.dumps(event), strict=True)
            assert read.type == event["type"]


def test_errors_reach_the_client_as_its_own(stage, fields):
    scene = stage([], max_model_len=10)
    session = scene.open()

    async def ask(client):
        outcomes = []
        asked = ({}, {"background": True}, {"previous_response_id": "resp_1"})
        for more in asked:
            try:
                await client.responses.create(**{**fields, "input": ASKED, **more})
            except openai.APIStatusError as error:
                outcomes.append((error.status_code, error.code, error.param))
        return outcomes

    assert _run(scene, session, ask) == [
        (400, "context_length_exceeded", "input"),
        (400, "unsupported_parameter", "background"),
        (400, "previous_response_not_found", "previous_response_id"),
    ]


def test_a_stream_that_fails_raises_in_the_client(stage, spell, words, fields):
    scene = stage([words.Say(spell.bytewise("abc"), fail_after=2)])
    session = scene.open()

    async def ask(client):
        seen = []
        try:
            async for event in await client.responses.create(**fields, input=ASKED, stream=True):
                seen.append(event.type)
        except openai.APIError as error:
            seen.append(error.code)
        return seen

    assert _run(scene, session, ask)[-2:] == ["response.failed", "engine_failed"]
    assert session.infra_error == "scripted failure after 2 tokens"
