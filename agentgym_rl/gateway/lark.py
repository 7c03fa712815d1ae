"""Writing grammars in Lark as llguidance reads it: text for an engine, nothing is compiled here.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md. Literal text is spelled with the
tokenizer's added tokens where it has them ("<tool_call>"): to llguidance those that look like tags
are no text, and no expression but their id stands for them. So JSON strings and free text cannot
hold them either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

SEPARATORS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Between the parts of JSON: as templates and Python write it. Left to itself, a model that has
nothing to say may write white space until it is cut."""
_META = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/]")


class Lark:
    """A grammar in the making. `added`: the added tokens of the tokenizer, text to id."""

    def __init__(self, added: Mapping[str, int]) -> None:
        self._added = added
        texts = sorted(map(re.escape, added), key=len, reverse=True)
        self._tags = re.compile("|".join(texts) or r"(?!)")
        self._rules: dict[str, str] = {}

    def exactly(self, text: str) -> str:
        """This text."""
        parts: list[str] = []
        at = 0
        for tag in self._tags.finditer(text):
            parts += [_quoted(text[at : tag.start()])] if tag.start() > at else []
            parts.append(f"({self.token(self._added[tag[0]])} | {_quoted(tag[0])})")
            at = tag.end()
        parts += [_quoted(text[at:])] if at < len(text) else []
        return " ".join(parts) or '""'

    def token(self, id: int) -> str:
        """This very token."""
        return f"<[{id}]>"

    def json(self, schema: Mapping[str, Any]) -> str:
        """JSON that is valid under `schema`."""
        spaced = {**closed(schema), "x-guidance": SEPARATORS}
        return self._rule("json", f"%json {json.dumps(spaced)}")

    def text_to(self, end: str, *barred: str) -> str:
        """Text, possibly none, and then `end`, which stands nowhere before, as none of `barred`
        does.

        One terminal where it can be: a lexer goes on with text as long as it may, and so would
        take the beginning of `end` for more of it.
        """
        tags = "|".join(_META.sub(r"\\\g<0>", tag) for tag in (end, *barred))
        if end in self._added:
            text = self._rule("TEXT", rf"/(?s:.*)/ & ~/(?s:.*)({tags})(?s:.*)/")
            return f"{text} {self.token(self._added[end])}"
        last = _META.sub(r"\\\g<0>", end)
        return self._rule("TEXT", rf"/(?s:.*){last}/ & ~/(?s:.*)({tags})(?s:.+)/")

    def any_of(self, choices: Sequence[str]) -> str:
        """One of these expressions."""
        return choices[0] if len(choices) == 1 else f"({' | '.join(choices)})"

    def rule(self, expression: str) -> str:
        """A name for an expression."""
        return self._rule("part", expression)

    def written(self, start: str) -> str:
        """The whole: what `start` stands for."""
        lines = [f"{name}: {rule}" for rule, name in self._rules.items()]
        return "\n".join([f"start: {start}", *lines]) + "\n"

    def _rule(self, kind: str, expression: str) -> str:
        """The rule for an expression; the same one for the same."""
        return self._rules.setdefault(expression, f"{kind}_{len(self._rules)}")


def closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema, with objects that list their properties and say nothing of others having no
    others: a model held to a schema would make some up. With `allOf`, whose parts see each
    other's properties as others, it is left alone.
    """
    return schema if '"allOf":' in json.dumps(schema) else _closed(schema)


def _closed(value: Any) -> Any:
    if isinstance(value, list):
        return [_closed(item) for item in value]
    if not isinstance(value, dict):
        return value
    inside = {
        name: _mapped(field) if name in _NAMED else _closed(field) if name in _HOLDERS else field
        for name, field in value.items()
    }
    lists = isinstance(value.get("properties"), dict) and not _OPENS.intersection(value)
    return {**inside, "additionalProperties": False} if lists else inside


def _mapped(value: Any) -> Any:
    """Schemas by name: the names are no keywords."""
    return {k: _closed(v) for k, v in value.items()} if isinstance(value, dict) else value


_NAMED = ("properties", "$defs", "definitions")
_HOLDERS = ("items", "prefixItems", "anyOf", "oneOf")
_OPENS = frozenset(
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "anyOf", "oneOf", "$ref"}
)


def _quoted(text: str) -> str:
    return json.dumps(text)
