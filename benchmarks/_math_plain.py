"""math-verify as its README has it, but for its time limits, which are the verifier's."""

from __future__ import annotations

import logging

from math_verify import parse, verify

logging.getLogger("math_verify").setLevel(logging.ERROR)


def judge(gold: str, message: str) -> str:
    """ "ok" or "wrong"."""
    ours = parse(f"${gold}$", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    theirs = parse(message, parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    return "ok" if verify(ours, theirs, timeout_seconds=None) else "wrong"
