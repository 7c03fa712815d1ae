"""The English of the documents: a sentence begins with its subject or its verb.

A sentence that begins with a relative pronoun or a conjunction is often a riddle for a reader who
does not know the project. Headings are titles and are not counted; nor are code blocks, and the
first column of a table, which holds names.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.blocks import FENCE, PAGES, ROOT

ODD = "Of|That|What|Who|Whose|Whether|As|Where|Which|By|They"
"""First words that are odd in documents, and in docstrings too (tests/test_package.py)."""
ODD_START = re.compile(rf"[*_(\[\"]*({ODD})\b")
_ITEM = re.compile(r"(?:[-*]|\d+\.|>) ")
_END = re.compile(r"(?<=[.!?:])[*_`\")]*\s+")


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page: of its paragraphs, list items and table cells."""
    paragraph: list[str] = []
    for line in [*FENCE.sub("", text).splitlines(), ""]:
        line = line.strip()
        if line and not line.startswith(("|", "#")) and not _ITEM.match(line):
            paragraph.append(line)
            continue
        yield from _END.split(" ".join(paragraph))
        paragraph = [_ITEM.sub("", line, count=1)] if _ITEM.match(line) else []
        if line.startswith("|"):
            for cell in line.strip("|").split("|")[1:]:
                yield from _END.split(cell.strip())


def odd(pages: list[Path]) -> list[str]:
    """Return the sentences of some pages that begin with an odd word, each with its page."""
    return [
        f"{page.relative_to(ROOT)}: {sentence}"
        for page in pages
        for sentence in sentences(page.read_text())
        if ODD_START.match(sentence)
    ]


def test_no_sentence_begins_with_a_relative_pronoun_or_a_conjunction():
    assert odd([*PAGES, ROOT / "CHANGELOG.md"]) == []


def test_an_odd_sentence_is_seen_wherever_it_stands():
    text = "# What a title\nA good one. Of two,\none.\n- Who asks?\n\n| Which | Where: here |\n"
    text += "```text\nAs code\n```\n"
    assert [s for s in sentences(text) if ODD_START.match(s)] == [
        "Of two, one.",
        "Who asks?",
        "Where:",
    ]
