"""The check of a built site: pages must not load files from elsewhere, and links must not be dead.

mkdocs checks the links between pages; this checks the files that plugins and themes add.
"""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes that make a browser load what they name, by element. A link to follow is none of them.
_LOADS = {
    "audio": ("src",),
    "iframe": ("src",),
    "img": ("src", "srcset"),
    "link": ("href",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
}
# Names a page without loading it.
_ONLY_NAMED = {"canonical", "prev", "next", "alternate"}


def problems(site: Path) -> list[str]:
    """Return a line for each file that a page loads from elsewhere, or that is missing."""
    return [found for page in sorted(site.rglob("*.html")) for found in _of_page(page, site)]


def _of_page(page: Path, site: Path) -> Iterator[str]:
    reader = _Reader()
    reader.feed(page.read_text())
    name = page.relative_to(site)
    for url in reader.loaded:
        parts = urlsplit(url)
        if parts.scheme not in ("", "data") or parts.netloc:
            yield f"{name}: loads {url}"
        elif not parts.scheme and not _there(page, site, parts.path):
            yield f"{name}: {url} is not there"


def _there(page: Path, site: Path, path: str) -> bool:
    base = site if path.startswith("/") else page.parent
    return (base / unquote(path).lstrip("/")).exists()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") in _ONLY_NAMED:
            return
        for name in _LOADS.get(tag, ()):
            if url := given.get(name):
                self.loaded.append(url.split(" ")[0] if name == "srcset" else url)
