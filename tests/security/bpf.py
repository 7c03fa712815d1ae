"""What the kernel does with a filter: classic BPF over `struct seccomp_data`, in thirty lines."""

from __future__ import annotations

import errno
import struct

LOAD, EQUAL, ABOVE, AT_LEAST, HAS_BITS, RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
ALLOWED, KILLED = "allowed", "killed"


def instructions(program: bytes) -> list[tuple[int, int, int, int]]:
    """(code, jump if true, jump if false, operand) of each."""
    return list(struct.iter_unpack("HBBI", program))


def evaluate(program: bytes, arch: int, number: int, *arguments: int) -> str:
    """What becomes of a call: `ALLOWED`, `KILLED`, or the name of an errno."""
    padded = [value & (1 << 64) - 1 for value in (*arguments, *[0] * (6 - len(arguments)))]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch, 0, *padded)
    code, at, loaded = instructions(program), 0, 0
    while True:
        kind, yes, no, operand = code[at]
        at += 1
        if kind == RETURN:
            return _verdict(operand)
        if kind == LOAD:
            (loaded,) = struct.unpack_from("<I", data, operand)
            continue
        holds = {
            EQUAL: loaded == operand,
            ABOVE: loaded > operand,
            AT_LEAST: loaded >= operand,
            HAS_BITS: bool(loaded & operand),
        }[kind]
        at += yes if holds else no


def _verdict(value: int) -> str:
    action, data = value & 0xFFFF0000, value & 0xFFFF
    if action == 0x00050000:
        return errno.errorcode[data]
    return {0x7FFF0000: ALLOWED, 0x80000000: KILLED}[action]
