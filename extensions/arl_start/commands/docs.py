"""The command `arl docs`: the pages of the documentation in the terminal."""

from __future__ import annotations

import textwrap
from argparse import ArgumentParser, Namespace

from agentgym_rl.cli import Command, json_flag, print_result

_HELP = """\
Print pages of the documentation, which the package contains, as Markdown.

  arl docs                            the names and titles of all pages
  arl docs install                    one page
  arl docs install#extras             one section of it
  arl docs --search "reward function" the sections that have these words
"""
_MOST = 20


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)
    parser.add_argument("page", nargs="?", metavar="PAGE", help="a page, or PAGE#SECTION")
    parser.add_argument("--search", metavar="WORDS", help="find sections by their words")


def docs(args: Namespace) -> int:
    """Print a page or a section, what has some words, or the names of all pages."""
    from arl_start.pages import all_pages, page_named

    if args.search is not None:
        return _search(args)
    if args.page:
        name, _, anchor = args.page.partition("#")
        text = page_named(name).text(anchor)
        print_result({"page": args.page, "text": text}, text, as_json=args.json)
        return 0
    titles = {page.name: page.title for page in all_pages()}
    width = max(map(len, titles))
    lines = [f"{name:{width}}  {title}" for name, title in titles.items()]
    print_result({"pages": titles}, "\n".join(lines), as_json=args.json)
    return 0


def _search(args: Namespace) -> int:
    from arl_start.pages import search

    hits = [(section.place, line) for section, line in search(args.search)]
    lines = [
        f"arl docs {place}\n    {textwrap.shorten(line, 96, placeholder=' …')}"
        for place, line in hits[:_MOST]
    ]
    if len(hits) > _MOST:
        lines.append(f"{len(hits) - _MOST} more: use more words")
    rows = [{"place": place, "line": line} for place, line in hits]
    text = "\n".join(lines) or f"no section has all of these words: {args.search}"
    print_result({"found": rows}, text, as_json=args.json)
    return 0 if hits else 1


COMMAND = Command(
    summary="print the documentation, or search in it",
    description=_HELP,
    flags=_flags,
    run=docs,
    examples=("arl docs                                   the documentation",),
    group="keys, examples and documentation",
    order=132,
)
