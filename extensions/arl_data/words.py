"""The words of a question, by which other forms of the same question are recognized."""

from __future__ import annotations

import html
import re
import unicodedata

_UNSEEN = ("Cf", "Mn")
"""Invisible characters and accents."""
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u2032\u0060\u00b4", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb\u2033", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
        **{"\u00d7": "*", "$": ""},
    }
)
"""The plain characters for typographic quotes, dashes and signs; marks of formulas are removed."""
_FORMULA = re.compile(r"\\[()\[\]]")


def words_of(text: str) -> str:
    """Return a text without the differences between forms of one question: spacing, case, the form
    of Unicode characters, invisible ones, typographic quotes and dashes, entities of HTML, the
    marks of formulas, and punctuation at either end."""
    plain = html.unescape(text) if "&" in text else text
    if not plain.isascii():
        plain = unicodedata.normalize("NFKC", plain.translate(_PLAIN))
        plain = "".join(c for c in plain if unicodedata.category(c) not in _UNSEEN)
    plain = _FORMULA.sub("", plain).translate(_PLAIN)
    words = "".join(plain.casefold().split())
    start, end = 0, len(words)
    while start < end and _is_punctuation(words[start]):
        start += 1
    while end > start and _is_punctuation(words[end - 1]):
        end -= 1
    return words[start:end] or text


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"
