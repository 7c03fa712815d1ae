"""What a grammar allows is what the model's parser reads back as asked for."""

import json

import jsonschema
import pytest
from arl_parsers.lark import prepared
from following import follows, said, written
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reading import tool

from agentgym_rl.gateway import ApiError, call_formats
from agentgym_rl.gateway.request.reply_form import ReplyForm
from tests.kit.call_formats import WRITE, chat_of
from tests.kit.cases import cases
from tests.kit.parser_cases import XML

FORMATS = call_formats()

TOOL = tool(
    "f",
    count={"type": "integer"},
    mode={"enum": ["a b", "c"]},
    note={"anyOf": [{"type": "string"}, {"type": "null"}]},
    tags={"type": "array", "items": {"type": "boolean"}},
)
TOOL["function"]["parameters"]["required"] = ["count", "mode"]
SCHEMA = prepared(TOOL["function"]["parameters"])
VALUES = st.fixed_dictionaries(
    {"count": st.integers(-99, 999), "mode": st.sampled_from(["a b", "c"])},
    optional={
        "note": st.none() | st.text('ab1\n"{<é null', max_size=6),
        "tags": st.lists(st.booleans(), max_size=3),
    },
)
ODD = st.dictionaries(
    st.sampled_from(["count", "mode", "note", "tags", "other"]),
    st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from(["a b", "x", ""]),
)


JSON = (
    *("hermes", "mistral", "mistral (newer)", "deepseek_v3", "deepseek_v31"),
    *("phi4_mini", "granite", "llama3_json", "llama4_json"),
)
NAMES = (*XML, *JSON)


def _written(name, form):
    return written(chat_of(name), form, family=name.partition(" ")[0])


def _said(name, text, tools=(TOOL,)):
    return said(chat_of(name), text, list(tools), family=name.partition(" ")[0])


FIXTURE = settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def _ordered(arguments):
    return {key: arguments[key] for key in SCHEMA["properties"] if key in arguments}


@pytest.mark.parametrize("name", NAMES)
@FIXTURE
@given(arguments=VALUES)
def test_valid_calls_are_allowed_and_read_back(name, arguments):
    text = WRITE[name]([("f", _ordered(arguments))])
    assert follows(chat_of(name), _written(name, ReplyForm(tools=[TOOL])), text)
    [call] = _said(name, text).calls
    note = arguments.get("note")  # without quotes, these texts are of the other type
    expected = arguments if note != "null" or name not in XML else {**arguments, "note": None}
    assert json.loads(call.arguments) == expected


@pytest.mark.parametrize("name", NAMES)
@FIXTURE
@given(arguments=ODD)
def test_nothing_is_allowed_that_does_not_read_back_as_valid(name, arguments):
    text = WRITE[name]([("f", _ordered(arguments) | arguments)])
    if not follows(chat_of(name), _written(name, ReplyForm(tools=[TOOL])), text):
        return
    [call] = _said(name, text).calls
    assert not call.malformed
    jsonschema.validate(json.loads(call.arguments), SCHEMA)


@cases("name", NAMES)
def test_how_many_calls(name):
    chat, call = chat_of(name), ("f", {"count": 1, "mode": "c"})
    one, three = (WRITE[name]([call] * count) for count in (1, 3))
    several, single = (
        _written(name, ReplyForm(tools=[TOOL], one_call=alone)) for alone in (False, True)
    )
    allowed = [(follows(chat, several, text), follows(chat, single, text)) for text in (one, three)]
    assert allowed == [(True, True), (True, False)]
    assert not follows(chat, several, "")
    assert not follows(chat, several, "Well, " + one)
    assert len(_said(name, three).calls) == 3


@cases("name", NAMES)
def test_names_are_those_of_the_tools(name):
    tools = [tool("first"), tool("é.second-2")]
    grammar = _written(name, ReplyForm(tools=tools))
    for called, allowed in (("first", True), ("é.second-2", True), ("f", False)):
        text = WRITE[name]([(called, {})])
        assert follows(chat_of(name), grammar, text) == allowed
        assert _said(name, text, tools).calls[0].name == called


WITHOUT = ("kimi_k2", "functiongemma", "gemma4", "lfm2", "pythonic", "gpt_oss")


def test_every_family_has_a_grammar_or_says_by_name_that_it_has_none():
    assert {name.partition(" ")[0] for name in NAMES} == set(FORMATS) - set(WITHOUT)
    for name in WITHOUT:
        with pytest.raises(ApiError, match=f"no grammar is known .*{name}"):
            _written(name, ReplyForm(tools=[TOOL]))
    with pytest.raises(ApiError, match="channels"):
        _written("gpt_oss", ReplyForm({}))


def test_json_or_calls(chat):
    form = ReplyForm({"type": "object", "properties": {"x": {"type": "integer"}}}, [TOOL])
    grammar = written(chat, form, family="hermes")
    call = WRITE["hermes"]([("f", {"count": 1, "mode": "c"})])
    texts = ['{"x": 1}', call, "12", '{"x": 1}' + call, '{"x": 1, "y": 2}']
    assert [follows(chat, grammar, text) for text in texts] == [True, True, False, False, False]


@cases(
    "opened, prompt_end, thought, allowed",
    [
        (False, "assistant\n", "", True),
        (False, "assistant\n", "<think>\nSo <b> {\n</think>\n\n", True),
        (False, "assistant\n", "<think></think>", True),
        (False, "assistant\n", "So {\n</think>\n\n", False),
        (True, "assistant\n<think>\n", "So <b> {\n</think>\n\n", True),
        (True, "assistant\n<think>\n", "", False),
        (True, "<think>\n\n</think>\n\n", "", True),
        (True, "<think>\n\n</think>\n\n", "<think>So</think>", False),
    ],
)
def test_thoughts_come_first_and_are_free(thinker, opened, prompt_end, thought, allowed):
    chat, form = thinker(opened=opened), ReplyForm({"type": "integer"})
    grammar = written(chat, form, family="hermes", prompt_end=prompt_end)
    assert follows(chat, grammar, thought + "12") == allowed
    if allowed:
        reply = said(chat, thought + "12", None, family="hermes", prompt_end=prompt_end)
        assert reply.content == "12"


UNWRITABLE = {
    "pattern": tool(x={"type": "string", "pattern": "a+"}),
    "$ref": tool(x={"$ref": "#/$defs/y"}),
    "'1'": tool(x={"enum": ["1", 2]}),
    "object or array": tool(x={"anyOf": [{"type": "string"}, {"type": "object"}]}),
    "named 'a>b'": tool(**{"a>b": {"type": "string"}}),
    "a function named": tool("a<b"),
    "no value of 'x'": tool(x={"enum": 5}),
    "not named": {"function": {"name": "f", "parameters": {"properties": [1]}}},
    "'oneOf'": {"function": {"name": "f", "parameters": {"type": "object", "oneOf": []}}},
}


@cases("what", UNWRITABLE)
def test_what_tags_cannot_say_is_refused_by_name(chat, what):
    form = ReplyForm(tools=[UNWRITABLE[what]], param="tool_choice")
    with pytest.raises(ApiError, match="tool_choice is not supported") as raised:
        written(chat, form, family="qwen3_xml")
    assert what in str(raised.value)


def test_where_no_grammar_can_be_made_it_says_so(chat):
    for family, form, says in (
        ("none", ReplyForm(tools=[TOOL]), "set gateway.tool_parser"),
        ("llama3_json", ReplyForm({}, [TOOL]), "JSON may be a call"),
    ):
        with pytest.raises(ApiError, match=says):
            written(chat, form, family=family)


def test_objects_are_closed_where_that_is_what_is_meant():
    inner = {"type": "object", "properties": {"properties": {"type": "string"}}}
    opened = {"properties": {"a": {"type": "array", "items": inner}}, "additionalProperties": {}}
    shut = {**inner, "additionalProperties": False}
    assert prepared(opened) == {**opened, "properties": {"a": {"type": "array", "items": shut}}}
    assert prepared({"anyOf": [inner, opened]})["anyOf"][0] == shut
    for composed in ({"allOf": [opened, inner]}, {**inner, "anyOf": [inner]}):
        assert prepared(composed) == composed


def test_what_describes_is_left_out_and_what_is_so_named_is_not():
    named = {"properties": {"title": {"type": "string", "title": "T"}}, "description": "d"}
    assert prepared(named) == {
        "properties": {"title": {"type": "string"}},
        "additionalProperties": False,
    }


DEEP = json.loads('{"items": ' * 400 + "{}" + "}" * 400)
TOO_MUCH = {
    "nested too deeply": DEEP,
    "allowed: 500": {"properties": {f"p{n}": {} for n in range(501)}},
    "multipleOf: got 1234567": {"items": {"type": "integer", "multipleOf": 1234567}},
    "characters, allowed": {"enum": ["v" * 100] * 1000},
}


@cases("says", TOO_MUCH)
def test_what_would_take_too_long_to_compile_is_refused(chat, says):
    with pytest.raises(ApiError, match=says):
        written(chat, ReplyForm(TOO_MUCH[says]), family="hermes")
