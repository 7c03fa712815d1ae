"""The parsing of untrusted or damaged JSON and TOML."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is not JSON, or nested more deeply than Python can parse.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        ValueError: it is not TOML, or nested more deeply than Python can parse.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{error}{_line_of(text, str(error))}") from error


def _line_of(text: str, error: str) -> str:
    """Return the line that an error of TOML names, and how it is written if it is a text without
    quotes."""
    place = re.search(r"at line (\d+)", error)
    line = text.split("\n")[int(place[1]) - 1].strip() if place else ""
    key, _, value = line.partition("=")
    bare = re.fullmatch(r"\s*([A-Za-z_./~][^\"'\[\]{}#]*?)\s*", value)
    said = f"; texts need quotes: {key.strip()} = {json.dumps(bare[1])}" if bare else ""
    return f": {line:.100}{said}" if line else ""
