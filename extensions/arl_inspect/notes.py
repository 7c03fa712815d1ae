"""The notes and tags that a user keeps with a run: `notes.json` in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentgym_rl.core import ConfigError, is_list, is_mapping, parse_json
from agentgym_rl.runtime import replace_text
from agentgym_rl.storage.run_folder import shown
from agentgym_rl.storage.run_list import is_run

FILE = "notes.json"
MOST_CHARS = 10_000
"""The largest length of notes, in characters."""
MOST_TAGS = 20
MOST_TAG_CHARS = 40


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes and tags of one run."""

    notes: str = ""
    tags: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: object) -> Notes:
        """Check a decoded JSON value, and return its notes; tags lose spaces around them and
        control characters, and repeated ones are left out.

        Raises:
            ConfigError: it is not an object of `notes` and `tags`, or one of them is too long.
        """
        if not is_mapping(given) or given.keys() - {"notes", "tags"}:
            raise ConfigError('notes are an object like {"notes": "a text", "tags": ["a tag"]}')
        notes, tags = given.get("notes", ""), given.get("tags", [])
        if not isinstance(notes, str) or len(notes) > MOST_CHARS:
            raise ConfigError(f"notes: allowed is a text of {MOST_CHARS:,} characters at most")
        return cls(notes, _tags(tags))


def _tags(given: object) -> tuple[str, ...]:
    if not is_list(given) or len(given) > MOST_TAGS:
        raise ConfigError(f"tags: allowed is a list of {MOST_TAGS} texts at most")
    found: dict[str, None] = {}
    for tag in given:
        if not isinstance(tag, str) or len(tag) > MOST_TAG_CHARS:
            raise ConfigError(
                f"tags: {tag!r:.60} is not a text of {MOST_TAG_CHARS} characters at most"
            )
        if name := "".join(filter(str.isprintable, " ".join(tag.split()))):
            found[name] = None
    return tuple(found)


def notes_of(folder: Path) -> Notes:
    """Return the notes of the run in `folder`; without a file they are empty.

    Raises:
        ConfigError: the file cannot be read, or does not hold notes.
    """
    try:
        return Notes.of(parse_json((folder / FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Notes()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{shown(folder / FILE)} cannot be read: {error}") from error


def write_notes(folder: Path, notes: Notes) -> None:
    """Replace the notes of the run in `folder`; a reader sees the old file or the new one.

    Raises:
        ConfigError: there is no run, or its folder cannot be written.
    """
    if not is_run(folder):
        raise ConfigError(f"{shown(folder)} does not hold a run any more: nothing is written")
    content: Mapping[str, Any] = asdict(notes)
    try:
        replace_text(folder / FILE, json.dumps(content, ensure_ascii=False, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"{shown(folder / FILE)} cannot be written: {error}") from error
