"""The published description: whole, and of one mind with the readers."""

import asyncio
import json

import pytest

from agentgym_rl.gateway import requests, schemas


def _document(scene):
    answer = asyncio.run(scene.request("GET", "/openapi.json"))
    assert answer.status == 200
    return answer.body


def test_every_route_is_described_and_every_reference_leads_somewhere(stage):
    scene = stage([])
    document = _document(scene)
    described = {path for path, verbs in document["paths"].items() if "post" in verbs}
    assert described == set(scene.gateway.app._routes)
    text = json.dumps(document)
    named = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= set(document["components"]["schemas"])


def test_chat_completions_are_described_with_all_that_is_read():
    described = set(schemas.ChatCompletionRequest.__struct_fields__)
    assert described == requests._READ | requests._IGNORED


def test_it_is_openapi(stage):
    schemathesis = pytest.importorskip("schemathesis")
    schema = schemathesis.openapi.from_dict(_document(stage([])))
    schema.validate()
    assert len(list(schema.get_all_operations())) >= 7


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/v1/messages", 405, "POST"),
        ("POST", "/health", 405, "GET"),
        ("DELETE", "/openapi.json", 405, "GET"),
        ("GET", "/v1/nothing", 404, None),
    ],
)
def test_what_is_no_route_says_so(stage, method, path, status, allow):
    answer = asyncio.run(stage([]).request(method, path))
    assert (answer.status, answer.headers.get("allow")) == (status, allow)
