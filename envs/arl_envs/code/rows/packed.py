"""Tests that are packed to save space: base64 of zlib of a pickle of JSON.

A pickle is a program, so none is ever loaded. Its opcodes are only read, and a pickle that does
anything but push one string is refused.
"""

from __future__ import annotations

import base64
import binascii
import pickletools
import zlib
from typing import Any

from agentgym_rl.gym.data import RowRefused, parse_json

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
