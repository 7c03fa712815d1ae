"""Responses and Messages on somebody else's model: asked in chat completions, and said back."""

import json

import pytest

from tests.kit.cases import cases
from tests.kit.someones_model import SomeonesModel, nonsense, refusing

pytest.importorskip("anthropic")

import anthropic
import openai
from someones_relay import CHAT_TOOL, NAME, RESPONSES_TOOL, calling, message, respond, talk

ASK = [{"role": "user", "content": "1+1?"}]
USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
either = pytest.mark.parametrize("stream", [False, True])


def in_turn(*said):
    """Says one after the other."""
    left = list(said)
    return lambda messages: left.pop(0)


def thinking_call(stream):
    """With thoughts, and, where streams do not lose it, a field that only this endpoint has."""
    more = {} if stream else {"signature": "s1"}
    return calling(reasoning_content="Hm.", **more)


def check_history(model, stream):
    """The endpoint got its own call back, with its thoughts, and the answer to it."""
    *_, said, answer = model.requests[-1]["messages"]
    assert said == {"role": "assistant", **thinking_call(stream)}
    assert answer == {"role": "tool", "tool_call_id": "theirs+1", "content": "2"}


def check_record(record):
    assert (record.num_turns, record.counters["tool_calls"]) == (2, 1)
    assert (record.counters["prompt_tokens"], record.counters["sampled_tokens"]) == (20, 10)
    assert record.spent["cached_tokens"] == 8
    roles = " ".join(message["role"] for message in record.messages)
    assert roles == "system user assistant tool assistant"
    assert record.tools == [CHAT_TOOL]
    assert (record.infra_error, record.rows) == ("", [])


@either
@pytest.mark.parametrize("named", [True, False], ids=["previous_response_id", "input"])
def test_a_conversation_in_responses(stream, named):
    model = SomeonesModel(in_turn(thinking_call(stream), {"content": "Two."}), usage=USAGE)

    async def converse(scene):
        first = await respond(scene, stream=stream, input="1+1?", instructions="Add.")
        called = first.output[-1]
        answer = {"type": "function_call_output", "call_id": called.call_id, "output": "2"}
        sent = [item.model_dump(exclude_none=True) for item in first.output]
        before = [] if named else [*ASK, *sent]
        goes_on = {"previous_response_id": first.id} if named else {}
        items = [*before, answer]
        last = await respond(scene, stream=stream, input=items, instructions="Add.", **goes_on)
        return first, last, scene.close()

    first, last, record = talk(model, converse)
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    assert first.output[2].arguments == '{"a":  1}'
    assert (last.output_text, last.status, last.model) == ("Two.", "completed", NAME)
    assert last.usage.input_tokens_details.cached_tokens == 4
    assert last.usage.output_tokens_details.reasoning_tokens == 2
    check_history(model, stream)
    check_record(record)


@either
def test_a_conversation_in_messages(stream):
    model = SomeonesModel(in_turn(thinking_call(stream), {"content": "Two."}), usage=USAGE)

    async def converse(scene):
        first = await message(scene, stream=stream, system="Add.", messages=ASK)
        result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "2"}
        said = [{"role": "assistant", "content": first.content}]
        messages = [*ASK, *said, {"role": "user", "content": [result]}]
        last = await message(scene, stream=stream, system="Add.", messages=messages)
        return first, last, scene.close()

    first, last, record = talk(model, converse)
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
    assert (first.content[2].input, first.stop_reason) == ({"a": 1}, "tool_use")
    assert (last.content[0].text, last.stop_reason) == ("Two.", "end_turn")
    assert (last.usage.input_tokens, last.usage.cache_read_input_tokens) == (6, 4)
    check_history(model, stream)
    check_record(record)


def test_a_rewritten_call_is_sent_as_it_is_now():
    model = SomeonesModel(in_turn(thinking_call(False), {"content": "Two."}))

    async def converse(scene):
        first = await message(scene, stream=False, messages=ASK)
        thought, text, call = first.content
        edited = {**call.model_dump(exclude_none=True), "input": {"a": 3}}
        said = {"role": "assistant", "content": [thought, text, edited]}
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "2"}
        await message(
            scene, stream=False, messages=[*ASK, said, {"role": "user", "content": [result]}]
        )

    talk(model, converse)
    *_, said, answer = model.requests[-1]["messages"]
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"a": 3}
    assert said["tool_calls"][0]["id"] == answer["tool_call_id"] == "theirs+1"
    assert not {"reasoning_content", "signature", "turn"} & set(said)


def test_what_an_agent_asks_for_is_asked_of_the_endpoint():
    model = SomeonesModel(nonsense)

    async def converse(scene):
        more = {"stop_sequences": ["x"], "top_p": 0.5, "temperature": 0.1, "top_k": 3}
        none = {"type": "none"}
        await message(scene, stream=False, messages=ASK, tool_choice=none, extra_body=more)
        told = {"reasoning": {"effort": "low"}, "parallel_tool_calls": False}
        await respond(scene, stream=True, input="Hi.", max_output_tokens=9, **told)

    talk(model, converse)
    first, second = model.requests
    given = ("stop", "top_k", "top_p", "temperature", "tool_choice", "max_tokens", "stream")
    assert [first.get(name) for name in given] == [["x"], 3, 0.5, 0.1, "none", 256, None]
    given = ("reasoning_effort", "parallel_tool_calls", "max_tokens", "stream", "top_p", "stop")
    assert [second.get(name) for name in given] == ["low", False, 9, True, None, None]
    assert second["tools"] == [CHAT_TOOL]


def test_tools_and_parts_that_no_endpoint_knows_become_functions_and_texts():
    call = {"id": "theirs+1", "type": "function"}
    call["function"] = {"name": "patch", "arguments": '{"input":  "+1"}'}
    model = SomeonesModel(in_turn({"content": None, "tool_calls": [call]}, {"content": "Two."}))
    tools = [{"type": "custom", "name": "patch"}, {"type": "web_search"}]
    image = {"type": "input_image", "image_url": "https://x.org/a.png"}

    async def converse(scene):
        said = [{"role": "user", "content": [image]}]
        first = await respond(scene, stream=False, input=said, tools=tools)
        [item] = first.output
        said += [item, {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "x"}]
        await respond(scene, stream=False, input=said, tools=tools)
        return item.input, scene.close()

    text, record = talk(model, converse)
    asked = model.requests[-1]
    assert (text, [tool["function"]["name"] for tool in asked["tools"]]) == ("+1", ["patch"])
    assert asked["messages"][0] == {"role": "user", "content": "[image]"}
    assert asked["messages"][1]["tool_calls"] == [call]
    assert (record.counters["omitted_tools"], record.counters["placeholders"]) == (1, 1)
    assert record.messages[0]["left_out"][0]["from"] == image["image_url"]


def test_the_endpoint_is_asked_to_continue_a_reply():
    model = SomeonesModel(nonsense)

    async def converse(scene):
        begun = [*ASK, {"role": "assistant", "content": "The answer"}]
        await message(scene, stream=False, messages=begun)

    talk(model, converse)
    [asked] = model.requests
    assert (asked["continue_final_message"], asked["add_generation_prompt"]) == (True, False)
    assert asked["messages"][-1]["content"] == "The answer"


OTHER = {"type": "function", "name": "other", "parameters": {"type": "object"}}
ONLY = {"type": "function", "function": {"name": "add"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@cases(
    "fields, sent",
    [
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        ({"tool_choice": {"type": "function", "name": "add"}}, {"tool_choice": ONLY}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "reply", "schema": SCHEMA, "strict": True},
                }
            },
        ),
        (
            {"text": {"format": {"type": "json_object"}}},
            {"response_format": {"type": "json_object"}},
        ),
    ],
    ids=["required", "named", "schema", "object"],
)
def test_what_a_reply_is_held_to_is_the_endpoint_s_to_hold(fields, sent):
    model = SomeonesModel(nonsense)

    async def converse(scene):
        await respond(scene, stream=False, input="Hi.", tools=[RESPONSES_TOOL, OTHER], **fields)

    talk(model, converse)
    [asked] = model.requests
    assert {name: asked[name] for name in sent} == sent


def test_the_session_s_sampling_is_above_the_agent_s():
    model = SomeonesModel(nonsense)

    async def converse(scene):
        await message(scene, stream=False, messages=ASK, extra_body={"temperature": 0.9})
        return await respond(scene, stream=False, input="Hi.", temperature=0.9)

    response = talk(model, converse, temperature=0.25, extra_body={"verbosity": "low"})
    assert response.temperature == 0.25
    sent = {(r["model"], r["temperature"], r["verbosity"]) for r in model.requests}
    assert sent == {(NAME, 0.25, "low")}


@cases(
    "reason, status, why, stop_reason",
    [
        ("length", "incomplete", "max_output_tokens", "max_tokens"),
        ("content_filter", "incomplete", "content_filter", "refusal"),
        ("eos", "completed", None, "end_turn"),
    ],
)
def test_how_replies_end(reason, status, why, stop_reason):
    async def converse(scene):
        said = await message(scene, stream=True, messages=ASK)
        return said, await respond(scene, stream=False, input="Hi.")

    said, response = talk(SomeonesModel(nonsense, finish_reason=reason), converse)
    found = response.incomplete_details and response.incomplete_details.reason
    assert (response.status, found, said.stop_reason) == (status, why, stop_reason)


def test_malformed_arguments_reach_the_agent():
    async def converse(scene):
        said = await message(scene, stream=True, messages=ASK)
        return said.content[-1].input, scene.close().counters["malformed_calls"]

    assert talk(SomeonesModel(lambda _: calling('{"a')), converse) == ({"_raw": '{"a'}, 1)


def test_tokens_are_estimated_by_what_the_endpoint_counted():
    async def converse(scene):
        async def count(text):
            asked = [{"role": "user", "content": text}]
            counted = await scene.anthropic.messages.count_tokens(model=NAME, messages=asked)
            assert counted.model_extra == {"estimated": True}
            return counted.input_tokens

        before = await count("x" * 400)
        asked = [{"role": "user", "content": "y" * 400}]
        await message(scene, stream=False, messages=asked, tools=[])
        return before, await count("y" * 400), await count("y" * 4000)

    before, same, longer = talk(SomeonesModel(nonsense, usage={"prompt_tokens": 50}), converse)
    assert 100 <= before <= 120
    assert (same, 400 < longer < 500) == (50, True)


@either
def test_a_failing_endpoint_is_infrastructure(stream):
    async def converse(scene):
        with pytest.raises(anthropic.InternalServerError, match="it answered 500: boom"):
            await message(scene, stream=stream, messages=ASK)
        with pytest.raises(openai.InternalServerError, match="it answered 500: boom"):
            await respond(scene, stream=stream, input="Hi.")
        return scene.close().infra_error

    assert "500" in talk(SomeonesModel(refusing(500, b"boom")), converse)


def test_a_stream_without_an_end_is_infrastructure():
    async def converse(scene):
        with pytest.raises(anthropic.APIError, match="without a finish_reason"):
            await message(scene, stream=True, messages=ASK)
        with pytest.raises(openai.APIError, match="without a finish_reason"):
            await respond(scene, stream=True, input="Hi.")
        return scene.close()

    record = talk(SomeonesModel(nonsense, finish_reason=None), converse)
    assert (record.num_turns, record.messages) == (0, [])
    assert "without a finish_reason" in record.infra_error


def test_an_outgrown_context_is_said_in_each_api_s_words():
    long = refusing(400, {"message": "too long", "code": "context_length_exceeded"})

    async def converse(scene):
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: too long"):
            await message(scene, stream=False, messages=ASK)
        with pytest.raises(openai.BadRequestError) as caught:
            await respond(scene, stream=True, input="Hi.")
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
        return scene.close().counters["overflows"]

    assert talk(SomeonesModel(long), converse) == 2


def test_what_no_endpoint_can_be_asked_is_refused_by_name():
    async def converse(scene):
        image = {"type": "input_smell", "image_url": "data:,"}
        with pytest.raises(openai.BadRequestError, match="'input_smell' part"):
            await respond(scene, stream=False, input=[{"role": "user", "content": [image]}])
        with pytest.raises(openai.BadRequestError, match="Previous response with id 'resp_1'"):
            await respond(scene, stream=False, input="Hi.", previous_response_id="resp_1")
        with pytest.raises(openai.NotFoundError, match="POST /v1/messages/count_tokens"):
            await scene.openai.completions.create(model=NAME, prompt="Once")
        listed = await scene.openai.models.list()
        return [model.id for model in listed.data]

    model = SomeonesModel(nonsense)
    assert talk(model, converse) == [NAME]
    assert not model.requests
