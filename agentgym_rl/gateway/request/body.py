"""The bodies of requests: their size, their JSON and their parameters, for all dialects.

Large bodies are read in threads, so that no request blocks the others. A parameter of the wrong
type is refused: all readers raise ApiError, a 400 that names the parameter.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

import msgspec

from agentgym_rl.gateway.errors import ApiError, bad_request
from agentgym_rl.runtime import BodyTooLarge, Receive, Scope, read_body
from agentgym_rl.runtime.http_server import header

from .client_sampling import is_neutral, refused

_P = ParamSpec("_P")
_T = TypeVar("_T")
_S = TypeVar("_S", bound=msgspec.Struct)

INLINE_SIZE = 50_000
"""The bytes or characters below which work is done inline: it takes at most about 15 ms, and a
thread would take longer to answer."""
TOKEN_SIZE = 10
"""The size of a sampled token: to write its log-prob takes as long as this many bytes."""
MAX_VALUES = 100_000
"""The maximum number of JSON values in a large request. Parsing this many takes 20 ms, during which
no thread can be interrupted; requests with more are not parsed at all."""

_READ_TIMEOUT_S = 30.0
_NOT_KNOWN = "this endpoint does not know it"
_PLACE = re.compile(r" - at `\$\.?(.*)`$")
_HALF = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")
"""The first half of a surrogate pair without the second: the text was cut inside a character."""
_UNKNOWN = re.compile(r"unknown field `(.*?)`")
_THREADS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="gateway")
"""The executor for large work. It has few threads, since each takes interpreter time from the event
loop."""


async def in_thread_if_large(
    size: int, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    """Call `function`, whose work grows with `size`: inline if `size` is small, else in a thread,
    while the event loop serves other requests."""
    if size < INLINE_SIZE:
        return function(*args, **kwargs)
    call = partial(function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, call)


def key_of(scope: Scope, headers: Sequence[str] = ()) -> str:
    """Return the API key from `Authorization: Bearer KEY`, or from the first of `headers` that is
    there; else ""."""
    scheme, _, key = header(scope, b"authorization").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    return next(filter(None, (header(scope, name.encode()) for name in headers)), "")


async def body_of(scope: Scope, receive: Receive, *, limit_bytes: int) -> bytes:
    """Return the complete body.

    Raises:
        ApiError: 415, it is compressed; 413, it is longer than `limit_bytes`; 408, it did not
            arrive in time.
        ConnectionError: the client went away before the end.
    """
    packed = header(scope, b"content-encoding").strip().lower()
    if packed not in ("", "identity"):
        why = f"content-encoding: got {packed!r:.40}, but bodies are read as they are: send JSON "
        raise ApiError(415, f"{why}without compression.", code="unsupported_encoding")
    try:
        async with asyncio.timeout(_READ_TIMEOUT_S):
            return await read_body(receive, limit_bytes=limit_bytes)
    except BodyTooLarge as error:
        raise ApiError(413, str(error), code="request_too_large") from error
    except TimeoutError as error:
        raise ApiError(408, "The request body did not arrive in time.") from error


def check_values(body: bytes, *, most: int = MAX_VALUES) -> None:
    """Refuse a JSON document with far too many values, without parsing it."""
    count = num_values(body, most=most)
    if count > most:
        raise bad_request(
            f"The request consists of at least {count} JSON values, allowed: {most}. Send long "
            "texts as strings.",
            code="too_many_values",
        )


def num_values(document: bytes, *, most: int) -> int:
    """Return about how many values a JSON document has. A result above `most` may be up to twice
    the true number."""
    if (marks := _marks(document)) <= most:  # includes marks inside strings
        return marks
    plain = document.replace(b"\\\\", b"").replace(b'\\"', b"")
    quotes = plain.count(b'"')
    if quotes > 4 * most:  # a named string has four quotes
        return -(-quotes // 4)
    return _marks(b"".join(plain.split(b'"')[::2]))


def has_many_values(text: str) -> bool:
    """Return whether JSON that a client sent as a text should stay a text, because parsing would
    take too long."""
    if len(text) < INLINE_SIZE:
        return False
    document = text.encode("utf-8", "surrogatepass")
    return num_values(document, most=MAX_VALUES) > MAX_VALUES


def _marks(document: bytes) -> int:
    """Count the marks of values: each value is the first in a container or follows a comma."""
    return sum(map(document.count, (b",", b"[", b"{")))


def json_object(body: bytes) -> dict[str, Any]:
    """Return the object in a JSON body."""
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        half = _HALF.search(body)
        why = f"{half[0].decode()} is half a character: cut texts between two" if half else error
        raise bad_request(f"The request body is not valid JSON: {why}") from error
    if not isinstance(raw, dict):
        raise bad_request("The request body must be a JSON object.")
    return raw


def given_fields(body: bytes) -> dict[str, Any]:
    """Return the parameters of a JSON body; null counts as absent."""
    return {name: value for name, value in json_object(body).items() if value is not None}


def refuse_unknown(given: Mapping[str, Any], read: Set[str], ignored: Set[str]) -> None:
    """Refuse a parameter that is neither read nor ignored, and would have an effect."""
    for name, value in given.items():
        if name not in read and name not in ignored and not is_neutral(name, value):
            raise refused(name, _NOT_KNOWN)


def _without_neutral(body: bytes, raw: Mapping[str, Any], *, known: Sequence[str]) -> bytes:
    """Return the body without its unknown fields that have no effect, the others byte for byte;
    empty if there are no such fields."""
    neutral = {name for name in raw if name not in known and is_neutral(name, raw[name])}
    if not neutral:
        return b""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({n: value for n, value in fields.items() if n not in neutral})


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


class StreamOptions(msgspec.Struct):
    """The options of OpenAI's streams."""

    include_usage: bool | None = None


def decode(
    body: bytes, kind: type[_S], *, refusal: Callable[[Mapping[str, Any]], ApiError | None]
) -> _S:
    """Return the request in `body`.

    `refusal` gets a body that is JSON but not such a request. It returns the error for the first
    feature that clients may expect and this gateway does not have, or None.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raw = json_object(body)
        if plain := _without_neutral(body, raw, known=kind.__struct_fields__):
            return decode(plain, kind, refusal=refusal)
        raise refusal(raw) or _invalid(str(error)) from error


def _invalid(why: str) -> ApiError:
    place, unknown = _PLACE.search(why), _UNKNOWN.search(why)
    if unknown is not None:
        return refused(unknown[1], _NOT_KNOWN)
    return bad_request(why.replace("`$.", "`"), param=place[1] if place else None)
