"""Tools that a model does not see as they are offered: those of the service, and texts."""

import asyncio
import json
import logging

import pytest

from tests.kit.cases import cases

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
HELLO = [{"role": "user", "content": "Hi"}]
NEEDED = {
    CHAT: {"messages": HELLO},
    RESPONSES: {"input": "Hi"},
    MESSAGES: {"messages": HELLO, "max_tokens": 200},
}
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
LOOK = {
    CHAT: {"type": "function", "function": {"name": "look", "parameters": SCHEMA}},
    RESPONSES: {"type": "function", "name": "look", "parameters": SCHEMA},
    MESSAGES: {"name": "look", "input_schema": SCHEMA},
}
DEFERRED = {
    CHAT: {"type": "function", "function": {"name": "later", "defer_loading": True}},
    RESPONSES: {"type": "function", "name": "later", "defer_loading": True},
    MESSAGES: {"name": "later", "input_schema": {}, "defer_loading": True},
}
OF_THE_SERVICE = {
    CHAT: [{"type": "web_search"}, {"type": "mcp", "server_label": "x"}],
    RESPONSES: [
        *({"type": kind} for kind in ("web_search", "web_search_preview", "local_shell", "shell")),
        {"type": "file_search", "vector_store_ids": ["vs_1"]},
        {"type": "computer_use_preview", "display_width": 1, "display_height": 1},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "image_generation", "quality": "low"},
        {"type": "mcp", "server_label": "x", "server_url": "http://x"},
        {"type": "tool_search"},
    ],
    MESSAGES: [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
        {"type": "code_execution_20250825", "name": "code_execution"},
        {"type": "computer_20250124", "name": "computer", "display_width_px": 1},
        {"type": "mcp_toolset", "mcp_server_name": "x"},
    ],
}
FORCED = {
    CHAT: ({"type": "web_search"}, {"type": "function", "function": {"name": "later"}}),
    RESPONSES: ({"type": "web_search"}, {"type": "function", "name": "later"}),
    MESSAGES: ({"type": "tool", "name": "web_search"}, {"type": "tool", "name": "later"}),
}
ANY = {CHAT: "required", RESPONSES: "required", MESSAGES: {"type": "any"}}


@pytest.fixture
def scene(stage, spell, words):
    return stage(lambda _: spell.canonical(words.ANSWER + words.END))


def _ask(scene, session, path, **fields):
    return asyncio.run(scene.post(session, path=path, **{**NEEDED[path], **fields}))


def _message(answer):
    return answer.body["error"]["message"]


@cases("path", NEEDED)
def test_tools_of_the_service_are_left_out_named_once_and_counted(
    stage, spell, words, caplog, path
):
    scene = stage(lambda _: spell.canonical(words.ANSWER + words.END))
    session, tools = scene.open(), [LOOK[path], DEFERRED[path], *OF_THE_SERVICE[path]]
    with caplog.at_level(logging.WARNING):
        for offered in (tools, tools, [LOOK[path]]):
            assert _ask(scene, session, path, tools=offered).status == 200
    said = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert len(said) == len(OF_THE_SERVICE[path]) + 1 == len(set(said))
    assert len({entry.prompt for entry in scene.engine.journal}) == 1
    counters = scene.gateway.close_session(session).counters
    assert counters["omitted_tools"] == len(said)
    assert (counters["forks_new_root"], counters["forks"]) == (0, 2)


@cases("path", NEEDED)
def test_a_tool_that_is_left_out_cannot_be_forced(stage, path):
    scene = stage([])
    session, tools = scene.open(), [LOOK[path], DEFERRED[path], *OF_THE_SERVICE[path]]
    for choice, why in zip(FORCED[path], ("built into a service", "defer_loading"), strict=True):
        answer = _ask(scene, session, path, tools=tools, tool_choice=choice)
        assert answer.status == 400
        assert why in _message(answer)
        assert "allowed: look" in _message(answer)
    answer = _ask(scene, session, path, tools=OF_THE_SERVICE[path], tool_choice=ANY[path])
    assert (answer.status, "built into a service" in _message(answer)) == (400, True)
    assert scene.engine.journal == []
    assert scene.gateway.close_session(session).counters["omitted_tools"] == 0


def test_allowed_tools_are_those_that_can_be_called(scene):
    tools = [LOOK[RESPONSES], {"type": "web_search"}]
    listed = [{"type": "function", "name": "look"}, {"type": "web_search"}]
    for tools_allowed, status in ((listed, 200), (listed[1:], 400)):
        choice = {"type": "allowed_tools", "mode": "auto", "tools": tools_allowed}
        session = scene.open()
        assert _ask(scene, session, RESPONSES, tools=tools, tool_choice=choice).status == status


def test_the_shell_of_anthropic_s_clients_is_a_function(stage, spell, words):
    call = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    scene = stage([spell.canonical(call + words.END)])
    editor = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}
    tools = [{"type": "bash_20250124", "name": "bash"}, editor]
    answer = _ask(scene, scene.open(), MESSAGES, tools=tools)
    [block] = answer.body["content"]
    assert (block["name"], block["input"]) == ("bash", {"command": "ls"})
    prompt = scene.gateway._chat.text(scene.engine.journal[0].prompt)
    assert "str_replace_based_edit_tool" in prompt


def test_examples_of_a_tool_are_shown_and_strict_is_not(scene):
    tool = {**LOOK[MESSAGES], "strict": True, "input_examples": [{"x": "seen"}]}
    assert _ask(scene, scene.open(), MESSAGES, tools=[tool]).status == 200
    prompt = scene.gateway._chat.text(scene.engine.journal[0].prompt)
    assert "seen" in prompt
    assert "strict" not in prompt


# ------------------------------------------------------------------ calls that are texts
PATCH = '*** Begin Patch\n+é "quoted"\n*** End Patch'
GRAMMAR = {"syntax": "lark", "definition": "start: begin_patch hunk+ end_patch"}
CUSTOM = {
    CHAT: {"name": "apply_patch", "format": {"type": "grammar", "grammar": GRAMMAR}},
    RESPONSES: {"name": "apply_patch", "format": {"type": "grammar", **GRAMMAR}},
}


def _calling(arguments):
    return f'<tool_call>\n{{"name": "apply_patch", "arguments": {arguments}}}\n</tool_call>'


WRITTEN = [json.dumps({"input": PATCH}), json.dumps({"patch": PATCH}), '{"input": 5}', '"raw"']
"""The arguments of calls; those of the last three are not what was asked for."""


def _chat_call(body):
    [call] = body["choices"][0]["message"]["tool_calls"]
    assert call["type"] == "custom"
    answer = {"role": "tool", "tool_call_id": call["id"], "content": "Done."}
    return call["custom"]["input"], [body["choices"][0]["message"], answer]


def _item_call(body):
    [call] = [item for item in body["output"] if item["type"] == "custom_tool_call"]
    answer = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Done."}
    return call["input"], [{k: v for k, v in call.items() if k != "status"}, answer]


@cases("path, read, name", [(CHAT, _chat_call, "messages"), (RESPONSES, _item_call, "input")])
def test_a_tool_that_takes_a_text_is_called_with_a_text_and_makes_one_row(
    stage, spell, words, path, read, name
):
    texts = [_calling(arguments) for arguments in WRITTEN]
    scene = stage([spell.bytewise(text + words.END) for text in [*texts, "Well."]])
    session, said, inputs = scene.open(), list(HELLO), []
    custom = CUSTOM[path]
    tools = [{"type": "custom", **({"custom": custom} if path == CHAT else custom)}]
    for _ in texts:
        answer = asyncio.run(scene.post(session, path=path, **{name: said}, tools=tools))
        text, more = read(answer.body)
        inputs.append(text)
        said += more
    assert asyncio.run(scene.post(session, path=path, **{name: said}, tools=tools)).status == 200
    assert inputs[:2] == [PATCH, WRITTEN[1]]
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0
    assert "begin_patch hunk+" in scene.gateway._chat.text(scene.engine.journal[0].prompt)


def test_an_edited_text_is_an_edit(stage, spell, words):
    scene = stage([spell.bytewise(text + words.END) for text in (_calling(WRITTEN[0]), "Well.")])
    session, tools = scene.open(), [{"type": "custom", **CUSTOM[RESPONSES]}]
    body = _ask(scene, session, RESPONSES, tools=tools).body
    _, [call, answer] = _item_call(body)
    said = [*HELLO, {**call, "input": "other"}, answer]
    assert _ask(scene, session, RESPONSES, tools=tools, input=said).status == 200
    assert session.counters["forks_args_edit"] == 1


def test_a_text_can_be_forced(stage, spell, words):
    scene = stage([spell.canonical(_calling(WRITTEN[0]) + words.END)] * 2)
    choice = {"type": "custom", "name": "apply_patch"}
    for path, chosen in ((RESPONSES, choice), (CHAT, {"type": "custom", "custom": choice})):
        custom = CUSTOM[path]
        tools = [{"type": "custom", **({"custom": custom} if path == CHAT else custom)}]
        session = scene.open()
        assert _ask(scene, session, path, tools=tools, tool_choice=chosen).status == 200
        assert session.counters["constrained_turns"] == 1


def test_a_text_is_streamed_as_its_own_kind_of_call(stage, spell, words):
    scene = stage([spell.canonical(_calling(WRITTEN[0]) + words.END)] * 2)
    tools = [{"type": "custom", **CUSTOM[RESPONSES]}]
    events = _ask(scene, scene.open(), RESPONSES, tools=tools, stream=True).typed_events
    deltas = [e for e in events if e["type"] == "response.custom_tool_call_input.delta"]
    assert [event["delta"] for event in deltas] == [PATCH]
    tools = [{"type": "custom", "custom": CUSTOM[CHAT]}]
    chunks = _ask(scene, scene.open(), CHAT, tools=tools, stream=True).events[:-1]
    [call] = [c for e in chunks for c in e["choices"][0]["delta"].get("tool_calls", ())]
    assert (call["type"], call["custom"]["input"]) == ("custom", PATCH)


def test_items_may_offer_tools(stage, spell, words):
    """Codex does so with models that it knows; `previous_response_id` keeps them."""
    calls = [_calling(WRITTEN[0]), _calling(WRITTEN[0]), "Well."]
    scene = stage([spell.bytewise(text + words.END) for text in calls])
    group = {"type": "namespace", "name": "functions", "description": ""}
    tools = [{**group, "tools": [{"type": "custom", **CUSTOM[RESPONSES]}]}]
    offer = {"type": "additional_tools", "role": "developer", "tools": tools}
    session, said, previous = scene.open(), [offer, *HELLO], None
    for _ in range(2):
        fields = {"input": said, "previous_response_id": previous}
        body = _ask(scene, session, RESPONSES, **fields).body
        [call] = [item for item in body["output"] if item["type"] == "custom_tool_call"]
        assert call["namespace"] == "functions"
        said, previous = _item_call(body)[1][1:], body["id"]
    _ask(scene, session, RESPONSES, input=said, previous_response_id=previous)
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
