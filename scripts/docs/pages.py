"""The written pages of the site: README.md is its first page.

In the repository a page links to any file. In the site a link to a file that is not a page leads to
a page that shows that file, so that the site is complete without a host for the code.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

# Pages from outside docs/, by their name in the site.
OUTSIDE: Mapping[str, str] = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
FIRST_DAYS = (
    "install",
    "quickstart",
    "my-data",
    "my-environment",
    "my-agent",
    "my-model",
    "recipes",
    "troubleshooting",
    "terminal",
)
"""The pages whose sections a search shows first."""
RECORDS = ("decisions", "measurements", "changelog", "claims")
"""The pages that record the work on the project; a search does not find them."""
_FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^()\s]+)\)")
_LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".sh": "bash",
    ".mjs": "javascript",
    ".json": "json",
    ".jinja": "jinja",
}


class DeadLinks(Exception):
    """The error for dead links, one a line."""


def write_pages(root: Path, to: Path) -> int:
    """Write all pages into a new folder `to`; return their number.

    Raises:
        DeadLinks: a page links to a file that is not in the repository.
    """
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(root / "docs", to)
    (to / "site.css").write_text((Path(__file__).parent / "site.css").read_text())
    written = {file.relative_to(root): str(file.relative_to(root / "docs")) for file in _docs(root)}
    written |= {Path(name): page for name, page in OUTSIDE.items()}
    pages = _Pages(root, to, {str(source): page for source, page in written.items()})
    for source, page in written.items():
        pages.copy(source, page)
    pages.show_files()
    if pages.dead:
        raise DeadLinks("\n".join(pages.dead))
    return len(written) + len(pages.shown)


def _in_search(page: str) -> str:
    """Return the front matter that decides how a search ranks a page."""
    name = page.removesuffix(".md")
    if name in RECORDS:
        return "---\nsearch: {exclude: true}\n---\n"
    return "---\nsearch: {boost: 4}\n---\n" if name in FIRST_DAYS else ""


def _docs(root: Path) -> list[Path]:
    return sorted((root / "docs").rglob("*.md"))


class _Pages:
    """The written pages, and the files that they link to."""

    def __init__(self, root: Path, to: Path, written: Mapping[str, str]) -> None:
        self._root = root
        self._to = to
        self._written = written
        self.shown: dict[str, str] = {}
        """The files and folders that have a page because another page links to them, and that
        page."""
        self.dead: list[str] = []

    def copy(self, source: Path, page: str) -> None:
        """Write a page with links converted to those of the site."""
        text = (self._root / source).read_text()
        parts, end = [], 0
        for fenced in _FENCED.finditer(text):  # text in code is not a link
            parts += [self._relinked(text[end : fenced.start()], source, page), fenced[0]]
            end = fenced.end()
        parts.append(self._relinked(text[end:], source, page))
        target = self._to / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_in_search(page) + "".join(parts))

    def _relinked(self, text: str, source: Path, page: str) -> str:
        def relink(match: re.Match[str]) -> str:
            return f"{match[1]}({self._link(match[2], source, page)})"

        return _LINK.sub(relink, text)

    def _link(self, link: str, source: Path, page: str) -> str:
        path, hash_, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link) or not path:
            return link
        aimed = os.path.normpath(source.parent / path)
        if not (self._root / aimed).exists():
            self.dead.append(f"{source}: {link}")
            return link
        target = self._written.get(aimed) or self._copied(aimed) or self._shown(aimed)
        return os.path.relpath(target, Path(page).parent) + hash_ + anchor

    def _copied(self, aimed: str) -> str | None:
        """Copy a picture or data file of docs/."""
        inside = Path(aimed).parts[:1] == ("docs",) and (self._root / aimed).is_file()
        return str(Path(aimed).relative_to("docs")) if inside else None

    def _shown(self, aimed: str) -> str:
        return self.shown.setdefault(aimed, f"source/{aimed}.md")

    def show_files(self) -> None:
        """Write the pages that show files and folders."""
        for aimed, page in self.shown.items():
            file = self._root / aimed
            target = self._to / page
            target.parent.mkdir(parents=True, exist_ok=True)
            text = _folder(file) if file.is_dir() else _file(file)
            target.write_text(f"---\nsearch: {{exclude: true}}\n---\n# {aimed}\n\n{text}")


def _file(file: Path) -> str:
    return f"````{_LANGUAGES.get(file.suffix, 'text')}\n{file.read_text()}````\n"


def _folder(folder: Path) -> str:
    names = sorted(
        f"{entry.name}/" if entry.is_dir() else entry.name
        for entry in folder.iterdir()
        if not entry.name.startswith((".", "__"))
    )
    return "```text\n" + "\n".join(names) + "\n```\n"
