"""Llama 3's JSON: a message that is calls and nothing else, unless a tag says where they begin."""

import json
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st
from reading import CUTS, Read, check_cuts, read, texts

from agentgym_rl.gateway import ToolCall, call_formats
from tests.kit.cases import cases

FORMATS = call_formats()

LLAMA = partial(FORMATS["llama3_json"], ())

TAG = "<|python_tag|>"
GOOD = '{"name": "f", "parameters": {"x":  "é}\\"{"}}'
CALL = ToolCall("f", '{"x":  "é}\\"{"}')


@cases(
    "text, shown",
    [
        (GOOD, Read("", (CALL,))),
        (f"\n {GOOD}\n", Read("", (CALL,))),
        (f"{TAG}{GOOD}", Read("", (CALL,))),
        (f"{TAG} {GOOD} ; {GOOD};{GOOD}", Read("", (CALL, CALL, CALL))),
        (f"{GOOD}\n{GOOD}", Read("", (CALL, CALL))),
        (f"Let me see. {TAG}{GOOD}", Read("Let me see.", (CALL,))),
        (f"{GOOD} Done.", Read("Done.", (CALL,))),
        (f"{GOOD}; then this", Read("; then this", (CALL,))),
        (f"{GOOD};; {GOOD}", Read(f";; {GOOD}", (CALL,))),
        (f"{GOOD} or {TAG}{GOOD}", Read("or", (CALL, CALL))),
    ],
)
def test_calls_and_the_text_around_them(text, shown):
    assert read(LLAMA(), text) == shown
    check_cuts(LLAMA, text, [2, 7, 1, 8])


@cases(
    "text",
    [
        "Hello {world}",
        '{"answer": 12}',
        '{"name": "Ada", "born": 1815}',
        f"I would call {GOOD}",
        '{"name": "f", "parameters": {"x": 1}',
        f"{TAG}print(1)",
        f"{TAG}{{",
        f"{TAG} ",
        "<|python",
        " \n",
        "",
    ],
)
def test_what_is_no_call_is_content(text):
    assert read(LLAMA(), text) == Read(text)
    check_cuts(LLAMA, text, [2, 7, 1, 8])


@cases(
    "text, name",
    [
        ('{"name": "f", "parameters": {"x": NaN}}', "f"),
        ('{"name": "f", "parameters": "{}"}', "f"),
        ('{"name": "f", "arguments": {},}', "f"),
        (TAG + '{"name": "f"}', "f"),
        (TAG + '{"name": "f", "parameters": {"x": ' + "[" * 50_000 + "]" * 50_000 + "}}", "f"),
        (TAG + '{"name": "f", "parameters": null}', "f"),
        (TAG + '{"parameters": {}}', ""),
        (TAG + "{f(1)}", ""),
    ],
)
def test_a_malformed_call_is_still_one_with_all_of_its_text(text, name):
    call = ToolCall(name, text.removeprefix(TAG), malformed=True)
    assert read(LLAMA(), text) == Read("", (call,))


def test_both_names_of_the_arguments_are_read():
    assert read(LLAMA(), '{"arguments": {"x": 1}, "name": "f"}').calls == (
        ToolCall("f", '{"x": 1}'),
    )


def test_a_call_goes_out_when_it_closes_and_content_when_it_is_certain():
    parser = LLAMA()
    assert parser.feed(GOOD[:-1]) == []
    assert parser.feed(GOOD[-1]) == [CALL]
    assert parser.feed("; ") == []
    assert parser.feed("and") == [";", " and"]
    assert parser.feed(" so on <|py") == [" so on"]
    assert parser.feed("re|>") == [" <|pyre|>"]


@cases("end", range(len(TAG + GOOD) + 1))
def test_a_reply_that_is_cut_anywhere(end):
    text = (TAG + GOOD)[:end]
    whole = end == len(TAG + GOOD)
    assert read(LLAMA(), text) == (Read("", (CALL,)) if whole else Read(text))
    check_cuts(LLAMA, text, [3, 1, 4, 1, 5, 9, 2, 6])


HOSTILE = texts(
    TAG, GOOD, '{"name": "f", "parameters": 3}', '{"a": 1}', ";", " ", "\n", "{", "}", '"', "\\",
    "hi", "<|py", "<",
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(text=HOSTILE, cuts=CUTS)
def test_streaming_changes_nothing(text, cuts):
    check_cuts(LLAMA, text, cuts)


@settings(max_examples=200, deadline=None)
@given(
    arguments=st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9)),
    escaped=st.booleans(),
)
def test_json_of_any_kind_survives(arguments, escaped):
    text = json.dumps(arguments, ensure_ascii=escaped)
    shown = read(LLAMA(), f'{{"name": "f", "parameters": {text}}}')
    assert shown == Read("", (ToolCall("f", text),))
