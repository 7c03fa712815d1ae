"""Qwen3.5's tags: values as they stand, in the types of the tool's schema."""

import json

from arl_parsers.xml_calls import value_json
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import CUTS, Read, check_cuts, read, texts, tool

from agentgym_rl.gateway import ToolCall, call_formats
from tests.kit.cases import cases

FORMATS = call_formats()

TOOL = tool(text={"type": "string"}, count={"type": "integer"}, more={"type": "object"})


def _make():
    return FORMATS["qwen3_xml"]([TOOL])


def _block(*parameters, name="f"):
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def _call(arguments, name="f"):
    return ToolCall(name, arguments)


GOOD = _block(("text", "3*4"), ("count", "7"))
GOOD_CALL = _call('{"text": "3*4", "count": 7}')


def test_calls_and_the_text_around_them():
    text = f"Let me see.\n{GOOD}\n{_block()}\nDone."
    assert read(_make(), text) == Read("Let me see.Done.", (GOOD_CALL, _call("{}")))


@cases(
    "value",
    [
        " two  spaces ",
        "a\n\nb\n",
        "\nfirst line empty",
        'say "é" \\n <b>',
        "</tool_call>",
        "</function>\n</tool_call>",
        "<function=g>",
        "7",
        "",
    ],
)
def test_a_value_is_what_stands_between_the_line_breaks(value):
    (call,) = read(_make(), _block(("text", value), ("count", "1"))).calls
    assert call == _call(f'{{"text": {json.dumps(value, ensure_ascii=False)}, "count": 1}}')


def test_values_may_stand_next_to_their_tags():
    inside = "<function=f><parameter=text>a</parameter><parameter=count>2</parameter></function>"
    assert read(_make(), f"<tool_call>{inside}</tool_call>").calls == (
        _call('{"text": "a", "count": 2}'),
    )


def test_the_last_of_a_repeated_parameter_counts():
    assert read(_make(), _block(("count", "1"), ("count", "2"))).calls == (_call('{"count": 2}'),)


@cases(
    "inside, name",
    [
        ("<function=f>\n<parameter=text>\n1\n</parameter>", "f"),
        ("<function=f>\n<parameter=text>\n1\n</function>", "f"),
        ("<function=f>\n<parameter=>\n1\n</parameter>\n</function>", "f"),
        ("<function=f>\n<parameter=a\nb>\n1\n</parameter>\n</function>", "f"),
        ("<function=f>\nx\n</function>", "f"),
        ("<function=f>\n</function>\nx", "f"),
        ("<function=>\n</function>", ""),
        ('{"name": "f", "arguments": {}}', ""),
        ("", ""),
    ],
)
def test_a_malformed_block_is_still_a_call_with_all_of_its_text(inside, name):
    shown = read(_make(), f"<tool_call>\n{inside}\n</tool_call>")
    assert shown == Read("", (ToolCall(name, inside, malformed=True),))


def test_a_value_that_never_ends_does_not_swallow_the_next_call():
    broken = "<function=f>\n<parameter=text>\n1\n</function>"
    shown = read(_make(), f"<tool_call>\n{broken}\n</tool_call>\n{GOOD}")
    assert shown.calls == (ToolCall("f", broken, malformed=True), GOOD_CALL)


@cases("end", range(len(GOOD) + 2))
def test_a_reply_that_is_cut_anywhere(end):
    text = f"a\n{GOOD}"[:end]
    assert read(_make(), text) == (Read("a", (GOOD_CALL,)) if end == len(GOOD) + 2 else Read(text))
    check_cuts(_make, text, [3, 1, 4, 1, 5, 9, 2, 6])


HOSTILE = texts(
    "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=text>",
    "</parameter>", "\n", " ", "hi", "<", GOOD,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(text=HOSTILE, cuts=CUTS)
def test_streaming_changes_nothing(text, cuts):
    check_cuts(_make, text, cuts)


@settings(max_examples=200, deadline=None)
@given(value=st.text(max_size=20).filter(lambda text: "</parameter>" not in text))
def test_any_text_survives(value):
    (call,) = read(_make(), _block(("text", value))).calls
    assert json.loads(call.arguments) == {"text": value}


@cases(
    "text, schema, written",
    [
        ("5", {"type": "string"}, '"5"'),
        ("5", None, '"5"'),
        ("5", {}, '"5"'),
        ("5", {"type": "integer"}, "5"),
        ("5", {"type": "number"}, "5"),
        ("5.50", {"type": "number"}, "5.50"),
        ("1e3", {"type": "number"}, "1e3"),
        ("5.0", {"type": "integer"}, "5.0"),
        ("+5", {"type": "integer"}, "5"),
        ("007", {"type": "integer"}, "7"),
        (".5", {"type": "number"}, "0.5"),
        ("1e999", {"type": "number"}, '"1e999"'),
        ("nan", {"type": "number"}, '"nan"'),
        ("9" * 5000, {"type": "integer"}, f'"{"9" * 5000}"'),
        ("five", {"type": "integer"}, '"five"'),
        ("True", {"type": "boolean"}, "true"),
        ("0", {"type": "boolean"}, "false"),
        ("yes", {"type": "boolean"}, '"yes"'),
        ("null", {"type": "null"}, "null"),
        ("Null", {"type": ["integer", "null"]}, "null"),
        ("null", {"type": "integer", "nullable": True}, "null"),
        ("3", {"anyOf": [{"type": "null"}, {"type": "integer"}]}, "3"),
        ("3", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "3"),
        ("3.5", {"type": ["integer", "string"]}, '"3.5"'),
        ("b", {"enum": ["a", "b"]}, '"b"'),
        ("2", {"enum": [1, 2, None]}, "2"),
        ("2", {"const": 2}, "2"),
        (' {"a":  [1]} ', {"type": "object"}, '{"a":  [1]}'),
        ('["\u00e9"]', {"type": "array"}, '["\u00e9"]'),
        ("{'a': 1}", {"type": "object"}, "\"{'a': 1}\""),
        ("[1e999]", {"type": "array"}, '"[1e999]"'),
        ("[" * 9999, {"type": "array"}, f'"{"[" * 9999}"'),
    ],
)
def test_a_value_has_the_type_of_its_schema(text, schema, written):
    assert value_json(text, schema) == written


def test_a_tool_that_nobody_offered_has_text_values():
    (call,) = read(_make(), _block(("count", "7"), name="g")).calls
    assert call == _call('{"count": "7"}', name="g")
