"""The build hook that makes the text of the package's page out of README.md.

A page of an index, and `pip show`, have no folder beside the text, so relative links and pictures
are dead there. The hook writes a link as its text, with the command that prints the linked page,
and leaves pictures out. hatchling runs it: [tool.hatch.metadata.hooks.custom] of pyproject.toml.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"^!\[[^\]]*\]\((?!\w+:)[^()\s]+\)\n", re.MULTILINE)
_LINK = re.compile(r"\[([^\[\]]+)\]\((?!\w+:)([^()\s]+)\)")
_PAGE = re.compile(r"docs/([\w/-]+)\.md(#[\w-]+)?")


class PackagePage(MetadataHookInterface):
    """The hook that sets `readme`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme, which pyproject.toml declares as dynamic."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": page_of(text)}


def page_of(readme: str) -> str:
    """Return a README without relative links and pictures."""
    return _LINK.sub(_without_link, _PICTURE.sub("", readme))


def _without_link(match: re.Match[str]) -> str:
    text, target = match[1], match[2]
    page = _PAGE.fullmatch(target)
    return f"{text} (`arl docs {page[1]}{page[2] or ''}`)" if page else text
