"""The routes: each is fuzzed, and what is none gets an error in the shape of its API."""

import asyncio

import pytest

from agentgym_rl.gateway.request import chat_request as requests
from tests.gateway import completions_wire, described
from tests.kit.cases import cases


def test_requests_are_made_up_for_every_route(stage):
    assert described.ROUTES.keys() == set(stage([]).gateway.app._routes) | {"/v1/conversations"}


def test_chat_completions_are_described_with_all_that_is_read():
    fields = set(completions_wire.ChatCompletionRequest.__struct_fields__)
    assert fields == requests._READ | requests._IGNORED


def test_the_description_is_openapi():
    schemathesis = pytest.importorskip("schemathesis")
    schemathesis.openapi.from_dict(described.document()).validate()


@cases(
    "method, path, status, allow",
    [
        ("GET", "/v1/messages", 405, "POST"),
        ("HEAD", "/v1/messages", 405, "POST"),
        ("POST", "/health", 405, "GET, HEAD"),
        ("GET", "/v1/nothing", 404, None),
        ("HEAD", "/v1/nothing", 404, None),
        ("GET", "/", 404, None),
    ],
)
def test_what_is_no_route_says_so(stage, method, path, status, allow):
    answer = asyncio.run(stage([]).request(method, path))
    assert (answer.status, answer.headers.get("allow")) == (status, allow)
    assert bool(answer.data) == (method != "HEAD")


@cases("path", ["/health", "/v1/models", "MODEL"])
def test_head_says_of_a_body_what_get_has(stage, path):
    scene = stage([])
    name = asyncio.run(scene.request("GET", "/v1/models")).body["data"][0]["id"]
    path = path.replace("MODEL", f"/v1/models/{name}")
    full, head = (asyncio.run(scene.request(method, path)) for method in ("GET", "HEAD"))
    assert (full.status, head.status, head.data) == (200, 200, b"")
    assert head.headers["content-length"] == str(len(full.data)) != "0"


@pytest.mark.parametrize("name", ["gpt-5", "owner/name", ""])
def test_a_model_that_is_not_there_is_not_found_as_openai_says_it(stage, name):
    answer = asyncio.run(stage([]).request("GET", f"/v1/models/{name}"))
    assert answer.status == 404
    error = answer.error
    assert (error["code"], error["param"], error["type"]) == (
        "model_not_found", "model", "invalid_request_error",
    )  # fmt: skip


@cases(
    "method, path, headers, status, kind",
    [
        ("GET", "/v1/messages", {}, 405, "invalid_request_error"),
        ("GET", "/v1/messages/batches/7", {}, 404, "not_found_error"),
        ("POST", "/v1/messages/batches", {}, 404, "not_found_error"),
        ("POST", "/v1/messages", {}, 401, "authentication_error"),
        ("POST", "/v1/messages/count_tokens", {}, 401, "authentication_error"),
        ("POST", "/s/wrong/v1/messages", {}, 401, "authentication_error"),
        ("GET", "/v1/models/x", {"anthropic-version": "2023-06-01"}, 404, "not_found_error"),
        ("POST", "/v1/complete", {"anthropic-version": "2023-06-01"}, 404, "not_found_error"),
    ],
    ids=range(8),
)
def test_errors_under_anthropic_paths_are_in_anthropics_shape(
    stage, method, path, headers, status, kind
):
    answer = asyncio.run(stage([]).request(method, path, headers=headers))
    assert (answer.status, answer.body["type"]) == (status, "error")
    assert answer.body["error"].keys() == {"type", "message"}
    assert answer.body["error"]["type"] == kind
    assert answer.headers["request-id"].startswith("req_")
