"""The OpenAPI 3.1 description of a gateway's routes, `GET /openapi.json`.

The request schemas come from the types into which requests are read, for routes that have such
types. Tests compare the other schemas with their readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from agentgym_rl.gateway.dialects.completions import CompletionsRequest
from agentgym_rl.gateway.dialects.messages.wire import Conversation, MessagesRequest
from agentgym_rl.gateway.dialects.responses.wire import CreateResponse, Response
from agentgym_rl.gateway.server import schemas

_REF = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True)
class _Described:
    summary: str
    asked: type | None
    answered: type
    error: type = schemas.Error
    streams: bool = False


_POST: Mapping[str, _Described] = {
    "/v1/chat/completions": _Described(
        "A chat completion.",
        schemas.ChatCompletionRequest,
        schemas.ChatCompletion,
        streams=True,
    ),
    "/v1/completions": _Described(
        "The continuation of a prompt.", CompletionsRequest, schemas.Completion, streams=True
    ),
    "/v1/responses": _Described(
        "A response of typed items.", CreateResponse, Response, streams=True
    ),
    "/v1/messages": _Described(
        "A reply, in Anthropic's shape.",
        MessagesRequest,
        schemas.Message,
        schemas.AnthropicError,
        streams=True,
    ),
    "/v1/messages/count_tokens": _Described(
        "The tokens that a reply would be sampled from.",
        Conversation,
        schemas.TokenCount,
        schemas.AnthropicError,
    ),
}
_GET: Mapping[str, _Described] = {
    "/health": _Described("The health of the gateway.", None, schemas.Health),
    "/v1/models": _Described("The list of the one model.", None, schemas.ModelList),
    "/v1/models/{model}": _Described("The model, by its name.", None, schemas.Model),
}
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def document(posted: Iterable[str], *, model: str) -> dict[str, Any]:
    """Return the description of a gateway that answers POST on the paths `posted`."""
    operations = {path: ("post", _POST[path]) for path in posted if path in _POST}
    operations |= {path: ("get", described) for path, described in _GET.items()}
    kinds = [
        kind
        for _, described in operations.values()
        for kind in (described.asked, described.answered, described.error)
        if kind is not None
    ]
    references, components = _schemas(kinds)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "agentgym-rl gateway",
            "version": "1",
            "description": "The API key names a session. /s/KEY before a path is a key, too.",
        },
        "components": {"schemas": components, "securitySchemes": _KEYS},
        "paths": {
            path: {verb: _operation(path, described, references, model=model)}
            for path, (verb, described) in operations.items()
        },
    }


def _operation(
    path: str, described: _Described, references: Mapping[type, Any], *, model: str
) -> dict[str, Any]:
    answered = {"application/json": {"schema": references[described.answered]}}
    if described.streams:
        answered["text/event-stream"] = {"schema": {"type": "string"}}
    error = {"application/json": {"schema": references[described.error]}}
    operation: dict[str, Any] = {
        "summary": described.summary,
        "responses": {
            "200": {"description": "The answer.", "content": answered},
            "4XX": {"description": "An error in the request.", "content": error},
            "5XX": {"description": "A failure here; see x-should-retry.", "content": error},
        },
    }
    if described.asked is not None:
        body = {"application/json": {"schema": references[described.asked]}}
        operation["requestBody"] = {"required": True, "content": body}
        operation["security"] = [{name: []} for name in _KEYS]
    if "{model}" in path:
        name = {"name": "model", "in": "path", "required": True}
        operation["parameters"] = [{**name, "schema": {"type": "string", "enum": [model]}}]
    return operation


def _schemas(kinds: list[type]) -> tuple[dict[type, Any], dict[str, Any]]:
    found, components = msgspec.json.schema_components(
        kinds, schema_hook=_schema_of_raw, ref_template=_REF
    )
    return dict(zip(kinds, found, strict=True)), components


def _schema_of_raw(kind: type) -> dict[str, Any]:
    if kind is msgspec.Raw:
        return {}
    raise NotImplementedError(f"no schema for {kind}")
