"""The described requests and replies are those that are read and written."""

import asyncio
import json

import msgspec
import pytest
from arl_dialects import responses_request as requests
from hypothesis import HealthCheck, Phase, given, settings

from tests.gateway import responses_wire as wire

PATH = "/v1/responses"
PLAIN_REFUSALS = (
    "not found",  # previous_response_id, conversation
    "give only one",  # of the two
    "there is no item",
    "input must not be empty",  # it only offers tools
    "there is another function named",
    "needs stream",
    "expected an integer",  # 3.0 is one to JSON Schema
    "maximum context length",
    "tool_choice",  # forces a call where no tools are, or of one that is not offered
    "cannot be honoured",  # a schema that no grammar can be made of
)


def test_all_parameters_that_are_read_are_described():
    described = set(wire.CreateResponse.__struct_fields__)
    assert described == requests._READ | requests._IGNORED


def _operation():
    schemathesis = pytest.importorskip("schemathesis")
    [asked], components = msgspec.json.schema_components(
        [wire.CreateResponse], ref_template="#/components/schemas/{name}"
    )
    body = {"required": True, "content": {"application/json": {"schema": asked}}}
    post = {"requestBody": body, "responses": {"200": {"description": "A response."}}}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "t", "version": "1"},
        "components": {"schemas": components},
        "paths": {PATH: {"post": post}},
    }
    schema = schemathesis.openapi.from_dict(document)
    return schema[PATH]["POST"], schemathesis.GenerationMode


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_made_up_requests_are_answered_as_described(stage, spell, words, mode):
    scene = stage(lambda _: spell.canonical(f"Hm.\n{words.CALL}{words.END}"))
    session, statuses = scene.open(train=False), []
    operation, modes = _operation()

    @settings(
        max_examples=25,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=modes[mode]))
    def ask(case):
        try:
            body = json.dumps(case.body).encode()
        except (TypeError, ValueError):  # made up to be no JSON at all
            return
        answer = asyncio.run(scene.post(session, body, path=PATH))
        statuses.append(answer.status)
        assert answer.status in (200, 400, 404), answer.data
        if answer.status != 200:
            why = answer.error["message"]
            assert mode == "NEGATIVE" or any(plain in why for plain in PLAIN_REFUSALS), why
        elif answer.headers["content-type"] == "application/json":
            msgspec.json.decode(answer.data, type=wire.Response)

    ask()
    share = statuses.count(200) / len(statuses)
    assert share > 0.3 if mode == "POSITIVE" else share < 0.9
    assert session.infra_error == ""
