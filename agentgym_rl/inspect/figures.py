"""Lines of a summary: a name, and beside it what there is to say, at most 80 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

INDENT = 17
"""Where what is said of a name begins."""
_WIDTH = 80


def figures(name: str, text: str) -> list[str]:
    """A name and its text, on as many lines as it takes; "": goes on with the name before."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"{name:<{INDENT}}",
        subsequent_indent=" " * INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def counts(found: Mapping[str, int]) -> str:
    """ "90 ok, 3 timeout": the most frequent first."""
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return ", ".join(f"{count:,} {name}" for name, count in ordered)
