"""The OpenEnv client and servers whose answers are not as they should be: each a named error."""

import asyncio
import json
from http import HTTPStatus

import pytest
from arl_envs.openenv import SPEC
from arl_envs.openenv.env import form_of
from websockets.asyncio.server import serve
from websockets.datastructures import Headers
from websockets.http11 import Response

from agentgym_rl.core import EnvError, InfraError
from tests.kit.cases import cases

ACTION = {"properties": {"message": {"type": "string"}}, "required": ["message"]}
FIRST = {"type": "observation", "data": {"observation": {"text": "hello"}}}
DIGITS = "1" * 400
DEEP = "[" * 200_000 + "]" * 200_000


def played(*answers, schema=None, action=None):
    """The last step against a server that sends `answers` to reset and step."""
    body = json.dumps({"action": ACTION}) if schema is None else schema
    left = [json.dumps(FIRST), *answers]

    async def handle(socket):
        async for _ in socket:
            await socket.send(left.pop(0))

    def schemas(connection, request):
        if request.path == "/schema":
            headers = Headers({"Content-Length": str(len(body.encode()))})
            return Response(HTTPStatus.OK, "OK", headers, body.encode())
        return None

    async def play():
        server = serve(handle, "127.0.0.1", 0, process_request=schemas, max_size=None)
        async with asyncio.timeout(60), server as listening:
            env = SPEC.make(url=f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
            try:
                await env.reset(seed=1)
                return await env.step(action or {"role": "assistant", "content": "go"})
            finally:
                await env.close()

    return asyncio.run(play())


def observed(**data):
    return json.dumps({"type": "observation", "data": {"observation": "x", **data}})


LIES = {
    f"[{DIGITS}]": "expected the type observation or error",
    DEEP: "nested deeper than 100 levels",
    '{"type": "observation", "data": {"observation": ' + "[" * 500 + "]" * 500 + "}}": "nested",
    '"text"': "expected the type observation or error",
    "null": "expected the type observation or error",
    '{"type": ["observation"], "data": {}}': "expected the type",
    '{"type": "observation", "data": [1]}': "expected the type",
    '{"type": "observation"}': "expected the type",
    "{": "step at http.*JSONDecodeError",
    observed(reward="1").replace('"1"', DIGITS): "reward is no finite number: 111",
    observed(reward=float("nan")): "reward is no finite number: nan",
    observed(reward=-float("inf")): "reward is no finite number",
    observed(reward="1"): "reward is no finite number: '1'",
    observed(reward=[1]): "reward is no finite number",
    observed(done="false"): "done is neither true nor false: 'false'",
    observed(done=[]): "done is neither true nor false",
    observed(observation="x" * (17 << 20)): "step at http.*over size limit|too big|16777216",
    '{"type": "error", "data": "no"}': "expected the type",
    '{"type": "error", "data": {"code": [1]}}': r"\[1\]: None",
}


@cases("answer, said", LIES.items(), ids=map(str, range(len(LIES))))
def test_an_answer_that_lies_is_infrastructure(answer, said):
    with pytest.raises(InfraError, match=said):
        played(answer)


@cases(
    "observation, text",
    [
        ("\ud800", '"?"'),
        ({"text": "\ud800"}, "?"),
        ({"a": [10**400], "b": "\ud800"}, f"a: [{10**400}]\nb: ?"),
        (None, ""),
    ],
)
def test_odd_observations_are_texts(observation, text):
    assert played(observed(observation=observation)).observation[0]["content"] == text


def test_refused_actions_are_told_whatever_the_place():
    errors = [{"loc": 5, "msg": "a"}, {"loc": ["b", 1], "msg": "c"}, 7, {"msg": [1]}]
    data = {"code": "VALIDATION_ERROR", "errors": errors}
    step = played(json.dumps({"type": "error", "data": data}))
    assert step.observation[0]["content"] == "error: 5: a; b.1: c; : [1]"


def test_an_environments_own_failure_is_told_whatever_it_says():
    with pytest.raises(EnvError, match="None"):
        played(json.dumps({"type": "error", "data": {"code": "EXECUTION_ERROR"}}))


@cases("arguments", ['{"message": 1e999}', DEEP, '{"a": ' + "[" * 300 + "]" * 300 + "}"])
def test_hostile_arguments_cost_a_turn(arguments):
    function = {"name": "act", "arguments": arguments}
    call = {"id": "1", "type": "function", "function": function}
    action = {"role": "assistant", "content": None, "tool_calls": [call]}
    schema = json.dumps({"action": {"properties": {"number": {"type": "number"}}}})
    assert played(schema=schema, action=action).info["metrics"]["invalid_actions"] == 1


SCHEMAS = {
    "[]": "expected an object with the schema",
    '{"action": 7}': "expected an object with the schema",
    DEEP: "nested deeper than 100 levels",
    "{": "is an OpenEnv server there",
    f'{{"action": {{"description": "{"x" * 2_000_000}"}}}}': "too large: at most 1,048,576 bytes",
    '{"action": {"properties": [1]}}': "no JSON schema of an object: Expected `object`",
    '{"action": {"properties": {"a": 1}}}': r"got `int` - at `\$.properties\[...\]`",
    '{"action": {"required": [[1]]}}': "Expected `str`, got `array`",
    '{"action": {"required": 1}}': "Expected `array`, got `int`",
}


@cases("schema, said", SCHEMAS.items(), ids=map(str, range(len(SCHEMAS))))
def test_a_schema_that_lies_is_infrastructure(schema, said):
    with pytest.raises(InfraError, match=said):
        played(schema=schema)


def test_a_schema_keeps_its_definitions():
    form = form_of({**ACTION, "$defs": {"a": {}}, "description": None})
    assert form.tool["function"]["parameters"]["$defs"] == {"a": {}}
    assert form.tool["function"]["description"] == "Act in the environment."
