"""Colour on a terminal, as NO_COLOR, FORCE_COLOR and TERM choose it (https://no-color.org)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TextIO

_BOLD, _RED, _CYAN = "1", "1;31", "36"
_STYLES: Mapping[str, Sequence[tuple[re.Pattern[str], str]]] = {
    "error": [(re.compile(r"\Aarl:"), _RED)],
    "result": [
        (re.compile(r"(?m)^[a-z][a-z -]{0,15}?(?=  )"), _BOLD),
        (re.compile(r"(?m)(?<=^next: ).+$"), _CYAN),
    ],
    "help": [
        (re.compile(r"(?m)^(usage:|[a-z][a-z ]*:$)"), _BOLD),
        (re.compile(r"(?m)(?<=^  )(--[\w-]+|-\w\b(, --[\w-]+)?|[a-z][a-z-]*(?=  +[a-z]))"), _CYAN),
        (re.compile(r"(?m)(?<=^  )arl .*?(?=   |$)"), _CYAN),
    ],
}
"""The parts of each kind of text that are coloured."""


def colour(kind: str, text: str, stream: TextIO) -> str:
    """Return a text of a kind, "error", "result" or "help", as it is written to a stream."""
    if not shows_colour(stream):
        return text
    for pattern, style in _STYLES.get(kind, ()):
        text = pattern.sub(lambda found, style=style: f"\x1b[{style}m{found[0]}\x1b[0m", text)
    return text


def shows_colour(stream: TextIO) -> bool:
    """Return whether a stream gets colour: NO_COLOR forbids it, FORCE_COLOR demands it, and without
    them a terminal that is not dumb gets it."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return os.environ.get("TERM") != "dumb" and stream.isatty()
