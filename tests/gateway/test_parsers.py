"""Hermes tool calls: what is a call, what is content, and that streaming changes neither."""

import json
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st
from reading import CUTS, Read, check_cuts, read, texts

from agentgym_rl.gateway import ToolCall, call_formats
from agentgym_rl.gateway.parsers import TextParser
from agentgym_rl.gateway.parsers.json_calls import read_call
from agentgym_rl.gateway.turn import StopCutter
from tests.kit.cases import cases

FORMATS = call_formats()

HERMES = partial(FORMATS["hermes"], ())


def _parse(*pieces):
    parser = HERMES()
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    content = "".join(event for event in events if isinstance(event, str))
    return content, [event for event in events if isinstance(event, ToolCall)]


def _block(inside):
    return f"<tool_call>\n{inside}\n</tool_call>"


GOOD = '{"name": "f", "arguments": {"x":  1,"y": "é"}}'


def test_arguments_are_the_models_own_text():
    assert _parse(_block(GOOD)) == ("", [ToolCall("f", '{"x":  1,"y": "é"}')])
    assert read_call('{"arguments":{},"name":"g", "why": []}') == [ToolCall("g", "{}")]


def test_every_closed_block_is_a_call_and_text_around_it_is_content():
    content, calls = _parse(f"Let me see.\n{_block(GOOD)}\n{_block(GOOD)}\n")
    assert content == "Let me see."
    assert calls == [ToolCall("f", '{"x":  1,"y": "é"}')] * 2


@cases(
    "inside, name",
    [
        ('{"name": "f", "arguments": {"x": 1}', "f"),
        ('{"name": "f", "arguments": "{}"}', "f"),
        ('{"name": "f"}', "f"),
        ('{"name": "f", "arguments": {"x": NaN}}', "f"),
        ('{"arguments": {}}', ""),
        ('{"name": 3, "arguments": {}}', ""),
        ("f(1)", ""),
        ("", ""),
        ("[" * 50_000, ""),
        ('{"name": "f", "arguments": {"x": ' + "[" * 50_000 + "]" * 50_000 + "}}", "f"),
    ],
)
def test_a_malformed_block_is_still_a_call_with_all_of_its_text(inside, name):
    _, calls = _parse(_block(inside))
    assert calls == [ToolCall(name, inside, malformed=True)]


@cases("text", ["a <tool_call> b", "<tool_call>", "x</tool_call>y", "a <tool_c "])
def test_what_never_closes_is_content(text):
    assert _parse(text) == (text, [])


@cases(
    "value",
    ["</tool_call>", "a</tool_call>\\n<tool_call>{", '\\"</tool_call>\\"', "\\\\</tool_call>x"],
)
def test_a_close_tag_in_a_json_string_closes_nothing(value):
    good = f'{{"name": "f", "arguments": {{"x": "{value}"}}}}'
    arguments = good[len('{"name": "f", "arguments": ') : -1]
    whole = read(HERMES(), f"a {_block(good)} b {_block(GOOD)} c")
    calls = (ToolCall("f", arguments), ToolCall("f", '{"x":  1,"y": "é"}'))
    assert whole == Read("abc", calls)


@cases("rest", ["", "\n", f"\n{_block(GOOD)}", " and more", '\n"quoted"'])
def test_a_string_that_never_ends_does_not_swallow_the_reply(rest):
    broken = '{"name": "f", "arguments": {"x": "1}'
    alone, followed = read(HERMES(), rest), read(HERMES(), _block(broken) + rest)
    assert followed.calls == (ToolCall("f", broken, malformed=True), *alone.calls)
    assert followed.content == alone.content.strip()


def test_text_that_may_begin_a_block_is_held_back_and_nothing_else():
    parser = HERMES()
    assert parser.feed("The <to") == ["The"]
    assert parser.feed("ol>") == [" <tool>"]
    assert parser.feed(" x\n") == [" x"]
    assert parser.feed("<tool_call>{") == []
    assert parser.feed("}</tool_call>") == [ToolCall("", "{}", malformed=True)]
    assert parser.feed("\n") == parser.finish() == []


PIECES = st.lists(
    st.sampled_from(
        ["<tool_call>", "</tool_call>", "<tool", "_call>", "\n", " ", "hi", GOOD, "{", "<"]
    ),
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(pieces=PIECES, cuts=st.lists(st.integers(1, 9), max_size=40))
def test_streaming_changes_nothing(pieces, cuts):
    text, streamed = "".join(pieces), []
    rest = text
    for cut in cuts:
        streamed.append(rest[:cut])
        rest = rest[cut:]
    assert _parse(*streamed, rest) == _parse(text)


HOSTILE = texts("<tool_call>", "</tool_call>", '"', "\\", "\n", " ", "hi", GOOD, "{", "<")


@settings(max_examples=300, deadline=None)
@given(text=HOSTILE, cuts=CUTS)
def test_quotes_change_nothing_of_that(text, cuts):
    check_cuts(HERMES, text, cuts)


@cases("end", range(len(_block(GOOD)) + 4))
def test_a_reply_that_is_cut_anywhere(end):
    text = f"a\n{_block(GOOD)} b"[:end]
    closed = "</tool_call>" in text
    shown = read(HERMES(), text)
    assert len(shown.calls) == closed
    assert shown.content == (text[:1] + text[-1:].strip() * (text[-1:] == "b") if closed else text)
    check_cuts(HERMES, text, [3, 1, 4, 1, 5, 9, 2, 6])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.just("</tool_call>"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(arguments=st.dictionaries(st.text(max_size=5), JSON), escaped=st.booleans())
def test_json_of_any_kind_survives(arguments, escaped):
    text = json.dumps(arguments, ensure_ascii=escaped)
    _, [call] = _parse(_block(f'{{"name": "f", "arguments": {text}}}'))
    assert call == ToolCall("f", text)


def test_without_tools_everything_is_content():
    parser = TextParser()
    assert parser.feed(_block(GOOD)) + parser.finish() == [_block(GOOD)]


@settings(max_examples=200, deadline=None)
@given(text=st.text("abc", max_size=20), cut=st.integers(1, 5))
def test_text_ends_before_the_first_stop_string(text, cut):
    stops = ("bca", "cc")
    cutter = StopCutter(stops)
    pieces = [text[i : i + cut] for i in range(0, len(text), cut)]
    shown = "".join(cutter.feed(piece, last=False) for piece in pieces) + cutter.feed("", last=True)
    ends = [text.find(stop) for stop in stops if stop in text]
    assert shown == text[: min(ends, default=len(text))]
