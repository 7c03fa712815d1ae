"""Forced calls and JSON schemas in the three APIs: what reaches the engine, and what comes back."""

import asyncio
import json

import numpy as np
import pytest
from following import END, follows
from reading import tool

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import RequestRefused, token_records
from agentgym_rl.engines.scripted import Say, ScriptedEngine
from agentgym_rl.gateway.request.reply_form import ReplyForm
from agentgym_rl.gateway.session.unmet_form import unmet
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.runtime import GrammarCompiler
from tests.kit.cases import cases

FIRST = [{"role": "system", "content": "Solve."}, {"role": "user", "content": "What is 3*4?"}]
ANSWER = "The answer is \\boxed{12}."
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3*4"}}\n</tool_call>'
CALCULATOR = tool("calculator", expression={"type": "string"})
# llguidance allows only one spelling of a text that is certain, up to an optional property.
STRICT = tool("calculator", expression={"type": "string"})
STRICT["function"]["parameters"]["required"] = ["expression"]
JSON = '{"answer": 12}'
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
NAMED = {"type": "function", "function": {"name": "calculator"}}
OTHER = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def _function(api, tool=CALCULATOR):
    function = tool["function"]
    if api == "chat":
        return tool
    if api == "responses":
        return {"type": "function", **function}
    return {"name": function["name"], "input_schema": function["parameters"]}


def _ask(scene, api, session=None, **fields):
    base = {
        "chat": {"messages": FIRST},
        "responses": {"input": "What is 3*4?"},
        "messages": {"messages": FIRST[1:], "max_tokens": 200},
    }[api]
    return asyncio.run(scene.post(session or scene.open(), path=PATHS[api], **base, **fields))


def _scene(stage, spell, text):
    return stage([spell.canonical(text + END)])


def _grammar(scene):
    return scene.engine.journal[-1].sampling.grammar


SINGLE = {
    "chat": {"parallel_tool_calls": False},
    "responses": {"parallel_tool_calls": False},
    "messages": {},
}
FORCED = {
    "chat-required": ("chat", "required", True),
    "chat-named": ("chat", NAMED, False),
    "chat-allowed": (
        "chat",
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
        True,
    ),
    "responses-required": ("responses", "required", True),
    "responses-named": ("responses", {"type": "function", "name": "calculator"}, False),
    "responses-allowed": (
        "responses",
        {"type": "allowed_tools", "mode": "required", "tools": [_function("responses")]},
        True,
    ),
    "messages-any": ("messages", {"type": "any"}, True),
    "messages-tool": ("messages", {"type": "tool", "name": "calculator"}, False),
}


@cases("how", FORCED)
def test_a_call_is_forced_and_comes_back_as_one(stage, spell, chat, how):
    api, choice, several = FORCED[how]
    scene = _scene(stage, spell, CALL)
    answer = _ask(scene, api, tools=[_function(api)], tool_choice=choice)
    assert answer.status == 200, answer.data
    grammar = _grammar(scene)
    allowed = [follows(chat, grammar, text) for text in (CALL, ANSWER, f"{CALL}\n{CALL}")]
    assert allowed == [True, False, several]
    body = answer.body
    ends = {
        "chat": lambda: body["choices"][0]["finish_reason"] == "tool_calls",
        "responses": lambda: (
            body["output"][0]["type"] == "function_call" and body["tool_choice"] == choice
        ),
        "messages": lambda: body["stop_reason"] == "tool_use",
    }
    assert ends[api]()


@pytest.mark.parametrize("api", PATHS)
def test_one_call_at_most_where_that_is_asked_for(stage, spell, chat, api):
    choice = {"type": "any", "disable_parallel_tool_use": True} if api == "messages" else "required"
    scene = _scene(stage, spell, CALL)
    _ask(scene, api, tools=[_function(api)], tool_choice=choice, **SINGLE[api])
    assert not follows(chat, _grammar(scene), f"{CALL}\n{CALL}")


def test_only_the_tools_that_are_allowed_can_be_called(stage, spell, chat):
    allowed = {"mode": "required", "tools": [NAMED]}
    scene = _scene(stage, spell, CALL)
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    _ask(scene, "chat", tools=[OTHER, CALCULATOR], tool_choice=choice)
    others = CALL.replace("calculator", "other")
    assert [follows(chat, _grammar(scene), text) for text in (CALL, others)] == [True, False]
    prompt = chat.text(list(scene.engine.journal[0].prompt))
    assert "other" in prompt  # offered all the same: the prompt's beginning does not change


FORMATS = {
    "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
    "responses": {"text": {"format": {"type": "json_schema", "name": "a", "strict": True}}},
    "messages": {"output_config": {"format": {"type": "json_schema"}}},
}


def _format(api):
    fields = json.loads(json.dumps(FORMATS[api]))
    [holder] = fields.values()
    (holder["json_schema"] if api == "chat" else holder["format"])["schema"] = SCHEMA
    return fields


@pytest.mark.parametrize("api", PATHS)
def test_a_reply_is_held_to_a_schema(stage, spell, chat, api):
    scene = _scene(stage, spell, JSON)
    answer = _ask(scene, api, **_format(api))
    grammar = _grammar(scene)
    texts = [JSON, ANSWER, '{"answer": "12"}', "{}", CALL]
    assert [follows(chat, grammar, text) for text in texts] == [True] + [False] * 4
    said = {
        "chat": lambda body: body["choices"][0]["message"]["content"],
        "responses": lambda body: body["output"][0]["content"][0]["text"],
        "messages": lambda body: body["content"][0]["text"],
    }[api](answer.body)
    assert json.loads(said) == {"answer": 12}


@pytest.mark.parametrize(("choice", "calls"), [("auto", True), ("none", False), ("required", True)])
def test_with_tools_a_schema_is_one_of_two_ways_to_answer(stage, spell, chat, choice, calls):
    scene = _scene(stage, spell, JSON)
    _ask(scene, "chat", tools=[CALCULATOR], tool_choice=choice, **_format("chat"))
    allowed = [follows(chat, _grammar(scene), text) for text in (JSON, CALL)]
    assert allowed == [choice != "required", calls]


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_any_object_will_do(stage, spell, chat, api):
    given = {"type": "json_object"}
    scene = _scene(stage, spell, JSON)
    _ask(
        scene, api, **({"response_format": given} if api == "chat" else {"text": {"format": given}})
    )
    allowed = [follows(chat, _grammar(scene), text) for text in (JSON, '{"x": []}', "[]", ANSWER)]
    assert allowed == [True, True, False, False]


def test_what_asks_for_nothing_has_no_grammar(stage, spell):
    everything = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
    for fields in (
        {"response_format": {"type": "text"}},
        {"tools": [CALCULATOR], "tool_choice": "auto"},
        {"tools": [CALCULATOR], "tool_choice": everything},
    ):
        scene = _scene(stage, spell, ANSWER)
        assert _ask(scene, "chat", **fields).status == 200
        assert _grammar(scene) is None


REFUSED = {
    "no-tools": ("chat", {"tool_choice": "required"}, "no tools are offered"),
    "unknown": ("chat", {"tools": [OTHER], "tool_choice": NAMED}, "there are other"),
    "nameless": ("chat", {"tool_choice": {"type": "function"}}, "names no function"),
    "mode": (
        "chat",
        {"tools": [OTHER], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
        "allowed: 'auto', 'required'",
    ),
    "auto": (
        "responses",
        {
            "tools": [_function("responses"), _function("responses", OTHER)],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "other"}],
            },
        },
        "use mode 'required'",
    ),
    "schema": (
        "chat",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": []}}},
        "response_format.json_schema.schema must be a JSON schema",
    ),
    "no-name": ("responses", {"text": {"format": {"type": "json_schema"}}}, "text.format.name"),
    "parameters": (
        "messages",
        {
            "tools": [{"name": "f", "input_schema": {"type": "string"}}],
            "tool_choice": {"type": "any"},
        },
        "must be a schema of an object",
    ),
}


@cases("what", REFUSED)
def test_what_cannot_be_forced_says_why(stage, what):
    api, fields, says = REFUSED[what]
    scene = stage([])
    answer = _ask(scene, api, **fields)
    assert answer.status == 400
    assert says in answer.body["error"]["message"]
    assert scene.engine.journal == []


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_cannot_compile_is_the_clients_mistake(stage, stream):
    def refuse(prompt):
        raise RequestRefused("HTTP 400: the grammar cannot be followed: Invalid type: x")

    scene = stage(refuse)
    session = scene.open()
    answer = _ask(scene, "chat", session, stream=stream, **_format("chat"))
    assert (answer.status, answer.error["param"]) == (400, "response_format")
    assert "Invalid type" in answer.error["message"]
    assert session.infra_error == ""
    assert _ask(scene, "chat", session).status == 503  # without a grammar it is nobody's schema


def _three_turns(scene, words):
    """Play a free, a forced and a free turn; return the session."""
    session, messages = scene.open(), list(FIRST)
    for choice in ("auto", "required", "none"):
        fields = {"tools": [STRICT], "tool_choice": choice}
        message = asyncio.run(scene.post(session, messages=messages, **fields)).message
        messages += [message, *words.observe(message, "12")]
    return session


def test_a_forced_turn_is_recorded_with_its_choices_and_trains(stage, spell, words):
    scene = stage([spell.canonical(text + END) for text in ("So. " + CALL, CALL, ANSWER)])
    session = _three_turns(scene, words)
    [row] = session.record().rows
    entries = scene.engine.journal
    assert row.tokens.tolist() == [*entries[-1].prompt, *entries[-1].token_ids]
    text = (BUNDLED / "tokenizer.json").read_text
    compiler = GrammarCompiler(text, vocab_size=640, eos_ids=[2])
    constraint = compiler.begin(entries[1].sampling.grammar)
    for index, token in zip(
        row.choices.index[row.turn_ids == 1], entries[1].token_ids, strict=True
    ):
        allowed = constraint.allowed()
        assert allowed[token]
        assert (allowed.sum() == 1) == (index == token_records.FORCED)
        if index != token_records.FORCED:
            found = np.unpackbits(
                token_records.unpacked_set(row.choices.sets[index]), bitorder="little"
            )
            assert np.array_equal(np.flatnonzero(found), np.flatnonzero(allowed))
        constraint.accept(token)
    assert set(row.choices.index[row.turn_ids != 1].tolist()) == {token_records.ALL}
    forced = row.choices.index == token_records.FORCED
    assert 0 < forced.sum() < len(entries[1].token_ids)
    assert row.loss_mask.tolist() == ((row.turn_ids >= 0) & ~forced).tolist()
    recorded = row.behavior_logprobs[row.turn_ids == 1]
    assert recorded.tolist() == np.float32(entries[1].logprobs).tolist()
    counters = session.record().counters
    assert (counters["constrained_turns"], counters["unmatched_turns"]) == (1, 0)
    assert counters["single_choice_tokens"] == forced.sum()
    assert counters["trained_tokens"] == counters["sampled_tokens"] - forced.sum()


def test_a_turn_of_an_engine_that_reads_grammars_otherwise_does_not_train(
    stage, spell, words, caplog
):
    # Spelled without the tokens that stand for the tags, as no grammar of ours allows.
    scene = stage([spell.bytewise(text + END) for text in ("So. " + CALL, CALL, ANSWER)])
    session = _three_turns(scene, words)
    [row] = session.record().rows
    trained = [set(row.loss_mask[row.turn_ids == turn].tolist()) for turn in range(3)]
    assert trained == [{True}, {False}, {True}]
    assert row.choices is None
    counters = session.record().counters
    assert (counters["constrained_turns"], counters["unmatched_turns"]) == (1, 1)
    assert counters["single_choice_tokens"] == 0
    assert "does not train: it sampled a token" in caplog.text


FREE = GatewayConfig(forced="free")


@cases("api", list(PATHS))
def test_free_forms_are_sampled_without_a_grammar_and_handed_over_as_they_are(stage, spell, api):
    scene = stage([spell.canonical("So. " + CALL + END)], config=FREE)
    session = scene.open()
    choice = {"type": "any"} if api == "messages" else "required"
    _ask(scene, api, session, tools=[_function(api)], tool_choice=choice)
    assert _grammar(scene) is None
    record = session.record()
    assert record.counters["constrained_turns"] == 0
    assert record.missed_form() == ""
    assert record.rows[0].num_trained == record.counters["sampled_tokens"]


def test_free_forms_need_no_grammar_of_the_models_format(stage, spell):
    config = GatewayConfig(forced="free", tool_parser="kimi_k2")
    for given, status in ((config, 200), (GatewayConfig(tool_parser="kimi_k2"), 400)):
        scene = stage([spell.canonical("five" + END)], config=given)
        session = scene.open()
        answer = _ask(scene, "chat", session, tools=[CALCULATOR], tool_choice="required")
        assert answer.status == status
        if status == 200:
            assert session.record().missed_form() == (
                "the model's reply made no call (forced by tool_choice)"
            )
        else:
            assert "gateway.forced 'free' needs no grammar" in answer.error["message"]


@cases(
    "schema",
    [
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "#/$defs/missing"},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"type": "string", "pattern": "^(a+)+$"},
        {"type": 5},
    ],
)
def test_what_a_schema_cannot_tell_counts_as_right(schema):
    reply = {"content": json.dumps("a" * 40 + "!")}
    assert unmet(ReplyForm({"properties": {"x": {}}, **schema}), reply) == ""


def test_a_forced_call_that_is_cut_says_length(stage, spell):
    scene = _scene(stage, spell, CALL)
    fields = {"tools": [CALCULATOR], "tool_choice": "required", "max_tokens": 5}
    answer = _ask(scene, "chat", **fields)
    assert answer.body["choices"][0]["finish_reason"] == "length"
    assert not answer.message.get("tool_calls")


def test_a_forced_call_streams(stage, spell):
    engine = ScriptedEngine([Say(spell.bytewise(CALL + END), chunk=3)])
    answer = _ask(stage(engine), "chat", tools=[CALCULATOR], tool_choice="required", stream=True)
    deltas = [event["choices"][0] for event in answer.events[:-1]]
    calls = [call for choice in deltas for call in choice["delta"].get("tool_calls", [])]
    assert [call["function"]["name"] for call in calls] == ["calculator"]
    assert deltas[-1]["finish_reason"] == "tool_calls"
