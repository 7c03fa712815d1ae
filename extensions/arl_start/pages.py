"""The pages of docs/: their titles, sections and words, and links that `arl docs` can follow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from agentgym_rl.core import ConfigError, near_of

from .shipped import shipped

RECORDS = ("decisions", "measurements")
"""The pages that record the work on the project: searches show them last."""
_HEADING = re.compile(r"^(#+) (.+)$")
_FENCE = re.compile(r"^ *```")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^()\s]+)\)")
_PICTURE = re.compile(r"!\[([^\]]*)\]\([^()\s]+\)")


@dataclass(frozen=True)
class Section:
    """A part of a page, from its heading to the next one."""

    page: str
    anchor: str
    """The name in links, as GitHub makes it of the heading."""
    title: str
    level: int
    lines: tuple[str, ...]
    """The lines, beginning with the heading."""

    @property
    def place(self) -> str:
        """Return the argument of `arl docs` that prints the section."""
        return self.page if self.level == 1 else f"{self.page}#{self.anchor}"


@dataclass(frozen=True)
class Page:
    """A page of docs/."""

    name: str
    """The path below docs/ without .md."""
    file: Path

    @cached_property
    def sections(self) -> list[Section]:
        """Return the parts of the page in their order."""
        found: list[Section] = []
        lines: list[str] = []
        heading, in_code = ("", 1), False
        for line in self.file.read_text(encoding="utf-8").splitlines():
            in_code ^= bool(_FENCE.match(line))
            match = None if in_code else _HEADING.match(line)
            if match and lines:
                found.append(self._section(heading, lines))
                lines = []
            if match:
                heading = (match[2], len(match[1]))
            lines.append(line)
        return [*found, self._section(heading, lines)]

    def _section(self, heading: tuple[str, int], lines: list[str]) -> Section:
        title, level = heading
        return Section(self.name, anchor_of(title), title, level, tuple(lines))

    @property
    def title(self) -> str:
        """Return the first heading."""
        return self.sections[0].title

    def text(self, anchor: str = "") -> str:
        """Return the page, or one section with those below it, with links as commands.

        Raises:
            ConfigError: the page has no such section.
        """
        sections = self.sections
        if anchor:
            names = [section.anchor for section in sections]
            if anchor not in names:
                raise unknown(f"{self.name}#{anchor}: no such section", anchor, names)
            begin = names.index(anchor)
            own = sections[begin]
            after = (it for it in sections[begin + 1 :] if it.level <= own.level)
            end = next(after, None)
            sections = sections[begin : sections.index(end) if end else None]
        return "\n".join(self._shown(sections)).strip()

    def _shown(self, sections: list[Section]) -> Iterator[str]:
        in_code = False
        for line in (line for section in sections for line in section.lines):
            in_code ^= bool(_FENCE.match(line))
            yield line if in_code else self._with_commands(line)

    def _with_commands(self, line: str) -> str:
        return _LINK.sub(self._link, _PICTURE.sub(r"(picture: \1)", line))

    def _link(self, match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            return match[0]
        if not path:
            return f"{text} (arl docs {self.name}#{anchor})"
        file = (self.file.parent / path).resolve()
        for folder, command in (("docs", "arl docs"), ("examples", "arl examples")):
            top = shipped(folder).resolve()
            if file.is_relative_to(top) and (folder == "examples" or path.endswith(".md")):
                name = str(file.relative_to(top)).removesuffix(".md")
                return f"{text} ({command} {name}{'#' * bool(anchor)}{anchor})"
        return text


def anchor_of(title: str) -> str:
    """Return the name of a heading in links, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def all_pages() -> list[Page]:
    """Return all pages by name, those that record the work on the project last."""
    top = shipped("docs")
    files = sorted(top.rglob("*.md"))
    pages = [Page(str(file.relative_to(top).with_suffix("")), file) for file in files]
    return sorted(pages, key=lambda page: (page.name in RECORDS, page.name))


def page_named(name: str) -> Page:
    """Return a page by its name; "docs/" before it and ".md" behind it may be left out.

    Raises:
        ConfigError: there is no such page.
    """
    pages = {page.name: page for page in all_pages()}
    name = name.removeprefix("docs/").removesuffix(".md")
    if name not in pages:
        raise unknown(f"no page {name!r}", name, list(pages))
    return pages[name]


def search(words: str) -> list[tuple[Section, str]]:
    """Return the sections with all of the words, those with the words in their headings first, each
    with the first line that has one of them."""
    wanted = words.lower().split()
    found: list[tuple[tuple[bool, int], Section, str]] = []
    for page in all_pages():
        for section in page.sections:
            text = "\n".join(section.lines).lower()
            if not wanted or not all(word in text for word in wanted):
                continue
            in_title = sum(word in section.title.lower() for word in wanted)
            lines = (line for line in section.lines if any(word in line.lower() for word in wanted))
            order = (page.name in RECORDS, -in_title)
            found.append((order, section, next(lines, section.title).strip()))
    return [(section, line) for _, section, line in sorted(found, key=lambda hit: hit[0])]


def unknown(what: str, name: str, known: list[str]) -> ConfigError:
    """Return the error of a name that is not known, with near matches."""
    return ConfigError(f"{what}; {near_of(name, known, most=3, others='there are')}")
