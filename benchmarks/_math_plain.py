"""The call of math-verify from its README, except for time limits, which are the verifier's."""

from __future__ import annotations

import logging

from math_verify import parse, verify

logging.getLogger("math_verify").setLevel(logging.ERROR)


def judge(gold: str, message: str) -> str:
    """Return "ok" or "wrong"."""
    ours = parse(f"${gold}$", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    theirs = parse(message, parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    return "ok" if verify(ours, theirs, timeout_seconds=None) else "wrong"
