"""Calls that come back as a client's schema library leaves them continue their row."""

from __future__ import annotations

import asyncio
import copy
import json

import pytest

from tests.kit.cases import cases

EDIT = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "replace_all": {"type": "boolean", "default": False},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "lines": {"$ref": "#/$defs/Range"},
        "edits": {"type": "array", "items": {"$ref": "#/$defs/Edit"}},
        "limit": {"type": "integer", "default": 2000},
        "how": {"oneOf": [{"$ref": "#/$defs/Plain"}, {"$ref": "#/$defs/Pattern"}]},
        "where": {"allOf": [{"$ref": "#/$defs/Range"}], "default": {"first": 1, "last": 9}},
    },
    "required": ["path"],
    "additionalProperties": False,
    "$defs": {
        "Range": {
            "type": "object",
            "properties": {"first": {"type": "number", "default": 1}, "last": {"type": "number"}},
        },
        "Edit": {
            "type": "object",
            "properties": {"old": {"type": "string"}, "count": {"default": 1}},
        },
        "Plain": {
            "type": "object",
            "properties": {"kind": {"const": "plain"}, "fold": {"default": True}},
        },
        "Pattern": {
            "type": "object",
            "properties": {"kind": {"const": "pattern"}, "flags": {"default": "g"}},
        },
        "Circle": {"$ref": "#/$defs/Circle"},
    },
}
REST = {"replace_all": False, "limit": 2000, "where": {"first": 1, "last": 9}}
WHERE = {"where": {"first": 1, "last": 9}}

FILLED = {
    "a default": ({"path": "a"}, {"path": "a", "replace_all": False}),
    "every default": ({"path": "a"}, {"path": "a", **REST, "note": None}),
    "a default that the model wrote": ({"path": "a", "limit": 2000}, {"path": "a"}),
    "order": ({"path": "a", "limit": 5}, {"limit": 5, "replace_all": False, "path": "a"}),
    "a number's form": ({"path": "a", "limit": 5.0}, {"path": "a", "limit": 5, **WHERE}),
    "a null": ({"path": "a", "note": None}, {"path": "a"}),
    "a null without a default": ({"path": "a", "lines": None}, {"path": "a"}),
    "inside an object": (
        {"path": "a", "lines": {"last": 3}},
        {"path": "a", "lines": {"first": 1, "last": 3}},
    ),
    "inside an array": (
        {"path": "a", "edits": [{"old": "x"}, {"old": "y", "count": 2}]},
        {"path": "a", "edits": [{"old": "x", "count": 1}, {"old": "y", "count": 2}]},
    ),
    "an alternative": (
        {"path": "a", "how": {"kind": "pattern"}},
        {"path": "a", "how": {"kind": "pattern", "flags": "g"}},
    ),
    "inside a default": ({"path": "a"}, {"path": "a", "where": {"last": 9}}),
    "what the schema rules out": ({"path": "a", "why": "so"}, {"path": "a"}),
}
EDITED = {
    "another value": ({"path": "a"}, {"path": "b"}),
    "another value than the default": ({"path": "a"}, {"path": "a", "replace_all": True}),
    "a default in place of a value": ({"path": "a", "limit": 5}, {"path": "a", "limit": 2000}),
    "a default in place of a null": ({"path": "a", "limit": None}, {"path": "a", "limit": 2000}),
    "false is not 0": ({"path": "a"}, {"path": "a", "replace_all": 0}),
    "a text is no number": ({"path": "a", "limit": "5"}, {"path": "a", "limit": 5}),
    "a property left out": ({"path": "a", "lines": {"last": 3}}, {"path": "a"}),
    "an element less": ({"path": "a", "edits": [{"old": "x"}]}, {"path": "a", "edits": []}),
    "another alternative": (
        {"path": "a", "how": {"kind": "pattern"}},
        {"path": "a", "how": {"kind": "pattern", "fold": True}},
    ),
}
TOOL = {"type": "function", "function": {"name": "edit", "parameters": EDIT}}


def _echoed(stage, spell, words, sampled, change, tools=(TOOL,)):
    """The record of a session whose client changed the first call; its second turn is exact."""
    call = json.dumps({"name": "edit", "arguments": sampled})
    said = f"I see.<tool_call>\n{call}\n</tool_call>{words.END}"
    scene = stage([spell.bytewise(said), spell.canonical(words.ANSWER + words.END)])
    session = scene.open()
    fields = {"tools": list(tools)}
    first = asyncio.run(scene.post(session, messages=words.FIRST, **fields)).message
    echo = copy.deepcopy(first)
    change(echo)
    messages = [*words.FIRST, echo, *words.observe(first, "done")]
    asyncio.run(scene.post(session, messages=messages, **fields))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=1 + record.counters["forks"])
    return record


def _arguments(value):
    def change(echo):
        echo["tool_calls"][0]["function"]["arguments"] = json.dumps(value)

    return change


@cases("sampled, echoed", FILLED.values(), ids=FILLED.keys())
def test_what_a_schema_fills_in_is_no_edit(stage, spell, words, sampled, echoed):
    record = _echoed(stage, spell, words, sampled, _arguments(echoed))
    assert record.counters["forks"] == record.counters["trusted_edits"] == 0


@cases("sampled, echoed", EDITED.values(), ids=EDITED.keys())
def test_other_arguments_are_an_edit(stage, spell, words, sampled, echoed):
    record = _echoed(stage, spell, words, sampled, _arguments(echoed))
    assert record.counters["forks"] == record.counters["forks_args_edit"] == 1


def test_text_that_a_client_drops_beside_calls_is_an_edit_of_the_history(stage, spell, words):
    def change(echo):
        echo["content"] = None
        _arguments({"path": "a", "replace_all": False})(echo)

    record = _echoed(stage, spell, words, {"path": "a"}, change)
    assert record.counters["forks"] == record.counters["forks_history_edit"] == 1


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {"$ref": "#/$defs/Circle", "$defs": EDIT["$defs"]},
        {"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}}},
        {"$ref": "#/nowhere/at/all"},
        {"$ref": 7, "properties": {"limit": 3}},
        {"properties": {"limit": {"default": 1, "$ref": "#"}}},
        {"properties": [], "allOf": [True, None], "anyOf": [False]},
        {"anyOf": [{"properties": {"path": {"const": "b"}}}, {"type": "array", "items": 3}]},
    ],
)
def test_an_odd_schema_fills_in_nothing(stage, spell, words, schema):
    """Neither may it be an error: clients send what they like."""
    tool = {"type": "function", "function": {"name": "edit", "parameters": schema}}
    change = _arguments({"path": "a", "replace_all": False})
    record = _echoed(stage, spell, words, {"path": "a"}, change, [tool])
    assert record.counters["forks"] == record.counters["forks_args_edit"] == 1
