"""Tests as a list of cases, each with its kind (DeepCoder, LiveCodeBench); the list may be packed
to save space: base64 of zlib of a pickle of JSON.

A pickle is a program, so none is ever loaded. Its opcodes are only read, and a pickle that does
anything but push one string is refused.
"""

from __future__ import annotations

import base64
import binascii
import pickletools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rl.gym.data import RowRefused, parse_json, shorten

from .cases import call_tests, check_entry, text_tests
from .draft import Tests

MAX_UNPACKED_BYTES = 256 << 20

_STRINGS = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"}
_HARMLESS = {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"}


def unpack(text: str, what: str) -> Any:
    """Return the value of `text`: JSON, or base64 of zlib of JSON or of a pickled string of JSON.

    Raises:
        RowRefused: `text` is anything else.
    """
    if not text.strip():
        return []
    if text.lstrip()[0] in "[{":
        return parse_json(text, what)
    data = _inflate(text, what)
    if data[:1] in (b"[", b"{"):
        try:
            return parse_json(data.decode(), what)
        except UnicodeDecodeError as error:
            raise RowRefused(f"{what}: not UTF-8: {error}") from error
    return parse_json(_pickled_string(data, what), what)


def _inflate(text: str, what: str) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(base64.b64decode(text, validate=True), MAX_UNPACKED_BYTES)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise RowRefused(f"{what}: neither JSON nor base64 of zlib: {error}") from error
    if not inflater.eof:
        size = MAX_UNPACKED_BYTES >> 20
        raise RowRefused(f"{what}: cut off, or of more than {size} MiB when unpacked")
    return data


def _pickled_string(data: bytes, what: str) -> str:
    strings: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in _STRINGS:
                strings.append(str(argument))
            elif opcode.name not in _HARMLESS:
                raise RowRefused(
                    f"{what}: a pickle of more than a string ({opcode.name}) is never loaded"
                )
    except (ValueError, UnicodeError) as error:
        if isinstance(error, RowRefused):
            raise
        raise RowRefused(f"{what}: neither JSON nor a pickled string: {error}") from error
    if len(strings) != 1:
        raise RowRefused(f"{what}: a pickle of {len(strings)} strings, expected one")
    return strings[0]


PROGRAM = ("stdin", "stdin_stdout")
FUNCTION = ("functional", "function_call")


def entry_of(cases: Sequence[Any], metadata: Any) -> str:
    """Return the function that `cases` call, named by them or by the row; "": they run a program.

    Raises:
        RowRefused: some call functions and some run programs, or there is no name, or several.
    """
    kinds = {_kind(case) for case in cases}
    if kinds <= set(PROGRAM):
        return ""
    if not kinds <= set(FUNCTION):
        raise RowRefused(
            f"test kinds: got {sorted(kinds)}, all expected to be of {PROGRAM} or of {FUNCTION}"
        )
    names = {check_entry(_name(case) or _mapping(metadata).get("func_name")) for case in cases}
    if len(names) != 1:
        raise RowRefused(f"tests of several functions: {sorted(names)}")
    return names.pop()


def listed_tests(cases: Sequence[Any], entry: str, *, starter: str) -> Tests:
    """Return the tests of `cases`, whose function is `entry`.

    Raises:
        RowRefused: a case lacks input or output, or has one that cannot be used.
    """
    pairs = [(_part(case, "input"), _part(case, "output")) for case in cases]
    return call_tests(pairs, starter=starter) if entry else text_tests(pairs)


def _kind(case: Any) -> str:
    if not isinstance(case, Mapping):
        raise RowRefused(f"a test: got {shorten(case)}, expected input, output and testtype")
    kind = case.get("testtype") or case.get("type")
    return kind if isinstance(kind, str) else shorten(kind)


def _name(case: Mapping[str, Any]) -> Any:
    return _mapping(case.get("metadata")).get("func_name") or case.get("fn_name")


def _part(case: Mapping[str, Any], name: str) -> Any:
    if name not in case:
        raise RowRefused(f"a test without {name}")
    return case[name]


def _mapping(metadata: Any) -> Mapping[str, Any]:
    if isinstance(metadata, str) and metadata.strip():
        metadata = parse_json(metadata, "metadata")
    return metadata if isinstance(metadata, Mapping) else {}
