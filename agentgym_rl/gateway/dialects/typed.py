"""The decoding of request bodies into types, from which the published schema is made too."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from agentgym_rl.gateway.errors import ApiError, bad_request
from agentgym_rl.gateway.request.fields import json_object

_T = TypeVar("_T", bound=msgspec.Struct)
_PLACE = re.compile(r" - at `\$\.?(.*)`$")
_UNKNOWN = re.compile(r"unknown field `(.*?)`")


class StreamOptions(msgspec.Struct):
    """The options of OpenAI's streams."""

    include_usage: bool | None = None


def decode(
    body: bytes, kind: type[_T], *, refused: Callable[[Mapping[str, Any]], ApiError | None]
) -> _T:
    """Return the request in `body`.

    `refused`: for a body that is JSON but not such a request, it returns the error for the first
    feature that clients may expect and this gateway does not have.

    Raises:
        ApiError: 400, naming what is wrong or not supported.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refused(json_object(body)) or _invalid(str(error)) from error


def _invalid(why: str) -> ApiError:
    place, unknown = _PLACE.search(why), _UNKNOWN.search(why)
    if unknown is not None:
        return bad_request(
            f"{unknown[1]} is not supported: this endpoint does not know it",
            param=unknown[1],
            code="unsupported_parameter",
        )
    return bad_request(why.replace("`$.", "`"), param=place[1] if place else None)
