"""Readers of request parameters for all dialects: a value of the right type, or a 400 that names
the parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agentgym_rl.gateway.errors import bad_request


def json_object(body: bytes) -> dict[str, Any]:
    """Return the object in a JSON body.

    Raises:
        ApiError: 400, the body is not a JSON object.
    """
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"The request body is not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise bad_request("The request body must be a JSON object.")
    return raw


def given_fields(body: bytes) -> dict[str, Any]:
    """Return the parameters of a JSON body; null counts as absent.

    Raises:
        ApiError: 400, the body is not a JSON object.
    """
    return {name: value for name, value in json_object(body).items() if value is not None}


def boolean(given: Mapping[str, Any], name: str, default: bool) -> bool:
    """Return a boolean parameter."""
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise bad_request(f"{name} must be true or false.", param=name)
    return value


def integer(
    given: Mapping[str, Any], name: str, *, low: int | None = None, high: int | None = None
) -> int | None:
    """Return an integer parameter from `low` to `high`; None if absent."""
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise bad_request(f"{name}: got {value!r}, expected an integer", param=name)
    if low is not None and value < low:
        raise bad_request(f"{name}: got {value}, expected at least {low}", param=name)
    if high is not None and value > high:
        raise bad_request(f"{name}: got {value}, expected at most {high}", param=name)
    return value


def number(given: Mapping[str, Any], name: str, *, low: float, high: float) -> float | None:
    """Return a number parameter between `low` and `high`; None if absent."""
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise bad_request(f"{name}: got {value!r}, expected {low:g} to {high:g}", param=name)
    return float(value)


def string(given: Mapping[str, Any], name: str) -> str | None:
    """Return a string parameter; None if absent."""
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise bad_request(f"{name} must be a string.", param=name)
    return value
