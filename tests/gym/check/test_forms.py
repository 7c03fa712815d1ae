"""What counts as a message, a tool and JSON."""

from arl_check.criteria.messages import json_problem, messages_problem, tools_problem

from tests.kit.cases import cases


def tool(**function) -> dict:
    return {"type": "function", "function": {"name": "f", **function}}


def schema(**properties) -> dict:
    return tool(parameters={"type": "object", "properties": properties})


GOOD_MESSAGES = [
    {"role": "user", "content": "text"},
    {"role": "user", "content": [{"type": "text", "text": "t"}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "tool", "tool_call_id": "", "content": "text"},
]
BAD_MESSAGES = [
    ("text", "expected a mapping"),
    ({"content": "no role"}, "role None"),
    ({"role": "user"}, "content None"),
    ({"role": "user", "content": 5}, "content 5"),
    ({"role": "user", "content": ["text"]}, "content part 'text'"),
    ({"role": "user", "content": [{"type": "text", "text": 5}]}, "expected text"),
    ({"role": "user", "content": "x", "more": {1}}, "no JSON"),
    ({"role": "user", "content": "\ud800"}, "lone surrogate"),
    ({"role": "user", "content": "x", "number": float("nan")}, "no JSON"),
    ({"role": "tool", "content": "x"}, "tool_call_id None"),
]
GOOD_TOOLS = [
    tool(),
    tool(description="d", parameters={"type": "object", "properties": {}}),
    schema(x={"type": "integer", "minimum": 0}, y={"enum": [1, 2]}, z={}),
    schema(x={"type": ["string", "null"]}, y={"type": "array", "items": {"type": "number"}}),
]
BAD_TOOLS = [
    ({"name": "f"}, "expected"),
    (tool(name="with space"), "allowed: 1 to 64"),
    (tool(description=5), "expected text"),
    (tool(parameters={"type": "array"}), 'type "object"'),
    (schema(x={"type": "int"}), "parameters.x has type 'int'"),
    (schema(x={"type": "array", "items": {"type": "text"}}), "parameters.x.items"),
    (schema(x={"enum": "abc"}), "enum is no list"),
    (tool(parameters={"type": "object", "required": ["x"]}), "requires ['x']"),
    (schema(x={"default": {1}}), "no JSON"),
]


@cases("message", GOOD_MESSAGES, ids=range(len(GOOD_MESSAGES)))
def test_good_messages(message):
    assert messages_problem([message]) == ""


@cases("message, said", BAD_MESSAGES, ids=range(len(BAD_MESSAGES)))
def test_bad_messages(message, said):
    assert said in messages_problem([{"role": "user", "content": "fine"}, message])


@cases("good", GOOD_TOOLS, ids=range(len(GOOD_TOOLS)))
def test_good_tools(good):
    assert tools_problem([good]) == ""


@cases("bad, said", BAD_TOOLS, ids=range(len(BAD_TOOLS)))
def test_bad_tools(bad, said):
    assert said in tools_problem([bad])


def test_two_tools_of_one_name():
    assert "two called 'f'" in tools_problem([tool(), tool()])
    assert "expected a list" in tools_problem("f")


@cases("value", [(1, 2), {1: 2}, {"x": (1,)}])
def test_what_json_changes_is_no_json(value):
    assert "JSON changes it" in json_problem(value)
