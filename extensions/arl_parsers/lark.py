"""A writer of Lark grammars as llguidance reads them: text for an engine, not compiled here.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md. Literal text is spelled with the
tokenizer's added tokens where it has them ("<tool_call>"). For llguidance, tokens that look like
tags are not text, and only an expression with their id matches them. JSON strings and free text
therefore cannot contain them either.

A client's JSON schema is converted within limits: engines compile schemas beside the sampling, or
even in the event loop of their server, and some schemas take minutes. Those known to be slow are
refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentgym_rl.gateway import GrammarText

NOTES = frozenset({"title", "description", "default", "examples", "deprecated", "$comment"})
"""The keywords that do not affect which values are valid."""

MAX_DEPTH = 100
"""The nesting limit for objects and arrays; llguidance allows 128, and we add a few of our own."""
MAX_PROPERTIES = 500
"""The limit for one object; a thousand properties take seconds to compile."""
MULTIPLES = (0.0001, 10_000)
"""The smallest and greatest `multipleOf`; 1234567 was not compiled after minutes."""
_NAMED = ("properties", "$defs", "definitions")
_HOLDERS = ("items", "prefixItems", "anyOf", "oneOf")
_OPENS = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties"})
_COMPOSES = frozenset({"anyOf", "oneOf", "$ref", "if"})


def prepared(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema without notes and, where possible, with closed objects: objects that list
    their properties and do not declare additional ones get no others, because a model would invent
    some. The schema stays open if its parts see each other's properties as additional ones.

    Raises:
        ValueError: the schema is too deep, or would take too long to compile.
    """
    _check(schema)
    return _trimmed(schema, close=not any(map(_composes, _objects(schema))))


def _check(schema: Mapping[str, Any]) -> None:
    low, high = MULTIPLES
    for part in _objects(schema):
        properties, step = part.get("properties"), part.get("multipleOf")
        if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
            count = len(properties)
            raise ValueError(f"an object has {count} properties, allowed: {MAX_PROPERTIES}")
        if isinstance(step, int | float) and not low <= step <= high:
            raise ValueError(f"multipleOf: got {step}, allowed: {low} to {high}")


def _objects(value: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Yield every JSON object within, whatever its role."""
    if depth > MAX_DEPTH:
        raise ValueError(f"the schema is nested too deeply, allowed: {MAX_DEPTH} levels")
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            yield from _objects(item, depth + 1)


def _composes(part: Mapping[str, Any]) -> bool:
    return "allOf" in part or ("properties" in part and not _COMPOSES.isdisjoint(part))


def _trimmed(value: Any, *, close: bool) -> Any:
    if isinstance(value, list):
        return [_trimmed(item, close=close) for item in value]
    if not isinstance(value, dict):
        return value
    inside: dict[str, Any] = {}
    for name, field in value.items():
        if name in _NAMED and isinstance(field, dict):  # the keys inside are names, not keywords
            inside[name] = {key: _trimmed(one, close=close) for key, one in field.items()}
        elif name in _HOLDERS:
            inside[name] = _trimmed(field, close=close)
        elif name not in NOTES:
            inside[name] = field
    lists = isinstance(value.get("properties"), dict) and _OPENS.isdisjoint(value)
    return {**inside, "additionalProperties": False} if close and lists else inside


SEPARATORS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""The separators between the parts of JSON, as templates and Python write it. With free spacing, a
model may write white space until the reply is cut."""
MAX_CHARACTERS = 100_000
"""The limit of a grammar, compiled as one text; most of it is schemas without descriptions."""
_META = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/]")


class Lark(GrammarText):
    """A grammar under construction. `added`: the tokenizer's added tokens, text to id."""

    def __init__(self, added: Mapping[str, int]) -> None:
        self._added = added
        texts = sorted(map(re.escape, added), key=len, reverse=True)
        self._tags = re.compile("|".join(texts) or r"(?!)")
        self._rules: dict[str, str] = {}

    def exactly(self, text: str) -> str:
        """Return an expression for exactly this text."""
        parts: list[str] = []
        at = 0
        for tag in self._tags.finditer(text):
            parts += [_quoted(text[at : tag.start()])] if tag.start() > at else []
            parts.append(f"({self.token(self._added[tag[0]])} | {_quoted(tag[0])})")
            at = tag.end()
        parts += [_quoted(text[at:])] if at < len(text) else []
        return " ".join(parts) or '""'

    def knows(self, text: str) -> bool:
        """Return whether a text is an added token."""
        return text in self._added

    def token(self, id: int) -> str:
        """Return an expression for exactly this token."""
        return f"<[{id}]>"

    def json(self, schema: Mapping[str, Any]) -> str:
        """Return an expression for JSON that is valid under `schema`.

        Raises:
            ValueError: see `prepared`.
        """
        spaced = {**prepared(schema), "x-guidance": SEPARATORS}
        return self._rule("json", f"%json {json.dumps(spaced)}")

    def text_to(self, end: str, *barred: str) -> str:
        """Return an expression for text, possibly empty, that ends with the first `end`, and that
        contains none of `barred`.

        The result is one terminal where possible: a lexer extends text as far as it can, and would
        otherwise take the beginning of `end` for more text.
        """
        tags = "|".join(_META.sub(r"\\\g<0>", tag) for tag in (end, *barred))
        if end in self._added:
            text = self._rule("TEXT", rf"/(?s:.*)/ & ~/(?s:.*)({tags})(?s:.*)/")
            return f"{text} {self.token(self._added[end])}"
        last = _META.sub(r"\\\g<0>", end)
        return self._rule("TEXT", rf"/(?s:.*){last}/ & ~/(?s:.*)({tags})(?s:.+)/")

    def any_of(self, choices: Sequence[str]) -> str:
        """Return an expression for one of these expressions."""
        return choices[0] if len(choices) == 1 else f"({' | '.join(choices)})"

    def rule(self, expression: str) -> str:
        """Return a name for an expression."""
        return self._rule("part", expression)

    def written(self, start: str) -> str:
        """Return the complete grammar, whose result is `start`.

        Raises:
            ValueError: the grammar is too long.
        """
        lines = [f"{name}: {rule}" for rule, name in self._rules.items()]
        text = "\n".join([f"start: {start}", *lines]) + "\n"
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"the grammar has {len(text)} characters, allowed: {MAX_CHARACTERS}")
        return text

    def _rule(self, kind: str, expression: str) -> str:
        """Return the name of the rule for an expression; equal expressions share one rule."""
        return self._rules.setdefault(expression, f"{kind}_{len(self._rules)}")


def _quoted(text: str) -> str:
    return json.dumps(text)
