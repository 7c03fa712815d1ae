"""Replies read by the tokenizer's own response template; transformers is the oracle."""

import subprocess
import sys

import pytest
from arl_parsers.response_template import (
    LongSpaces,
    ResponseTemplate,
    ResponseTemplateParser,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import CUTS, Read, check_cuts, read, texts, tool

from agentgym_rl.core import ConfigError
from agentgym_rl.gateway import ToolCall
from tests.kit.cases import cases

TOOLS = [tool(text={"type": "string"}, count={"type": "integer"})]
START = "<|im_start|>assistant\n"
THOUGHTS = {"open": "<think>", "close": "</think>"}
JSON = {
    "start_anchor": START,
    "fields": {
        "reasoning_content": THOUGHTS,
        "tool_calls": {
            "open_pattern": r"\s*<call>",
            "close": "</call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close": "<|im_end|>"},
    },
}
"""A JSON object with name and arguments in a block."""
NAMED = {
    "start_anchor": START,
    "fields": {
        "thinking": THOUGHTS,
        "tool_calls": {
            "open_pattern": r"<\|call>(?P<name>\w+)",
            "close": "<call|>",
            "repeats": True,
            "content": "json",
            "content_args": {"unquoted_keys": True},
            "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {},
    },
}
"""The name in the tag; JSON but for the keys' quotes."""
TAGS = {
    "start_anchor": START,
    "fields": {
        "tool_calls": {
            "open_pattern": r"<f=(?P<name>\w+)>",
            "close": "</f>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<p=(?P<key>\w+)>(?P<value>.*?)</p>"},
            "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"repeats": True, "join": "\n"},
    },
}
"""Values without types."""
SPECS = {"json": JSON, "named": NAMED, "tags": TAGS}


@pytest.fixture(scope="module")
def templates():
    return {name: ResponseTemplate(spec) for name, spec in SPECS.items()}


@cases(
    "name, text, shown",
    [
        (
            "json",
            '<think>\nHm.\n</think>\n\nSo.\n<call>\n{"name": "f", "arguments": {"x":  "é"}}</call>',
            Read("So.", (ToolCall("f", '{"x":  "é"}'),), "Hm."),
        ),
        (
            "json",
            '<call>{"name": "f", "arguments": {}}</call> <call>{"name": "f"}</call> Done.',
            Read(
                "Done.",
                (ToolCall("f", "{}"), ToolCall("f", '{"name": "f"}', malformed=True)),
            ),
        ),
        (
            "json",
            '<call>{"name": "f", "arguments": {"x": NaN}}</call>',
            Read("", (ToolCall("f", '{"name": "f", "arguments": {"x": NaN}}', malformed=True),)),
        ),
        ("json", "<call>f(1)</call>", Read("", (ToolCall("", "f(1)", malformed=True),))),
        ("named", '<|call>f{text: "a"}<call|>', Read("", (ToolCall("f", '{"text": "a"}'),))),
        ("named", '<|call>f{"text":  "a"}<call|>', Read("", (ToolCall("f", '{"text":  "a"}'),))),
        ("named", "<|call>f{text: }<call|>", Read("", (ToolCall("f", "{text: }", True),))),
        ("named", "<think>Hm.</think>So.", Read("So.", reasoning="Hm.")),
        (
            "tags",
            "<f=f><p=text>7</p><p=count>7</p><p=more>é</p></f>",
            Read("", (ToolCall("f", '{"text": "7", "count": 7, "more": "é"}'),)),
        ),
        ("tags", " One. <f=g></f>\nTwo.\n", Read("One.\nTwo.", (ToolCall("g", "{}"),))),
        ("tags", "<think>Hm.</think>", Read("<think>Hm.</think>")),
    ],
)
def test_a_reply_is_what_the_template_says(templates, name, text, shown):
    assert read(ResponseTemplateParser(templates[name], TOOLS, START), text) == shown
    check_cuts(lambda: ResponseTemplateParser(templates[name], TOOLS, START), text, [3, 1, 4, 1])


def test_a_field_that_is_no_text_for_transformers_is_still_streamed():
    fields = {"content": {"content": "json"}, "reasoning": {**THOUGHTS, "content": "int"}}
    template = ResponseTemplate({"start_anchor": START, "fields": fields})
    parser = ResponseTemplateParser(template, None, START)
    assert read(parser, "<think>x</think>{oh") == Read("{oh", reasoning="x")


def test_a_prompt_may_open_the_thought(templates):
    parser = ResponseTemplateParser(templates["json"], TOOLS, f"x<|im_end|>\n{START}<think>\n")
    assert read(parser, "Hm.\n</think>\n\nSo.") == Read("So.", reasoning="Hm.")
    parser = ResponseTemplateParser(templates["json"], TOOLS, f"{START}<think>\n\n</think>\n\n")
    assert read(parser, "So.") == Read("So.")


def test_without_tools_calls_are_content(templates):
    text = 'So. <call>{"name": "f", "arguments": {}}</call>'
    assert read(ResponseTemplateParser(templates["json"], None, START), text) == Read(text)


def test_a_call_that_never_closes_is_read_as_far_as_it_goes(templates):
    def shown(text):
        return read(ResponseTemplateParser(templates["json"], TOOLS, START), text).calls

    assert shown('<call>{"name": "f", "arguments": {}}') == (ToolCall("f", "{}"),)
    assert shown('<call>{"name": "f"') == (ToolCall("f", '{"name": "f"', malformed=True),)


CALL = '<call>\n{"name": "f", "arguments": {"text": "a", "count": 1}}\n</call>'


@settings(max_examples=150, deadline=None)
@given(
    thought=st.sampled_from(["", "<think>\nHm.\n</think>\n\n"]),
    content=st.sampled_from(["", "So é.\n\nYes."]),
    calls=st.integers(0, 3),
)
def test_a_well_formed_reply_is_what_transformers_makes_of_it(templates, thought, content, calls):
    from transformers.utils.chat_parsing import parse_response

    text = f"{thought}{content}{chr(10).join([CALL] * calls)}"
    theirs = parse_response(text, JSON, prefix=START)
    ours = read(ResponseTemplateParser(templates["json"], TOOLS, START), text)
    assert ours.content == theirs.get("content", "")
    assert ours.reasoning == theirs.get("reasoning_content", "")
    theirs = [call["function"] for call in theirs.get("tool_calls", [])]
    assert theirs == [{"name": "f", "arguments": {"text": "a", "count": 1}}] * calls
    assert ours.calls == (ToolCall("f", '{"text": "a", "count": 1}'),) * calls


HOSTILE = texts("<think>", "</think>", "<call>", "</call>", "\n", " " * 90, "hi", "<", "{", CALL)


@settings(max_examples=200, deadline=None)
@given(text=HOSTILE, cuts=CUTS)
def test_streaming_changes_nothing(templates, text, cuts):
    check_cuts(lambda: ResponseTemplateParser(templates["json"], TOOLS, START), text, cuts)


@settings(max_examples=200, deadline=None)
@given(text=texts(" " * 70, "\n" * 60, "a", "\U000f0000", most=9), cuts=CUTS)
def test_very_long_whitespace_comes_back(text, cuts):
    whole, spaces = LongSpaces(), LongSpaces()
    pieces = [text[sum(cuts[:i]) : sum(cuts[: i + 1])] for i in range(len(cuts))]
    pieces.append(text[sum(cuts) :])
    assert whole.show(whole.hide(text)) == text
    assert "".join(spaces.show(spaces.hide(piece)) for piece in pieces) == text
    assert " " * 129 not in whole.hide(text)


@cases(
    "spec, said",
    [
        ({"fields": {"content": {}}}, "start_anchor"),
        ({"start_anchor": "a", "fields": {"content": {}, "poem": {"open": "b"}}}, "poem"),
        ({"start_anchor": "a", "fields": {"content": {"open_pattern": "("}}}, "open_pattern"),
        ({"start_anchor": "a", "fields": 3}, "fields"),
    ],
)
def test_a_template_that_cannot_be_used_is_named(spec, said):
    with pytest.raises(ConfigError, match=f"response_template.*{said}"):
        ResponseTemplate(spec)


@pytest.mark.slow
def test_no_torch_is_imported():
    code = (
        "import sys\n"
        "from arl_parsers.response_template import ResponseTemplate\n"
        "assert 'transformers' not in sys.modules\n"
        "ResponseTemplate({'start_anchor': 'a', 'fields': {'content': {}}})\n"
        "print('transformers' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True False\n", done.stderr
