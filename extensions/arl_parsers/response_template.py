"""The parser of replies by the response template that a tokenizer ships (transformers 5).

A response template names the fields of a message (content, reasoning, tool calls), the text that
opens and closes each field, and how its inside is to be read. transformers reads it, without torch.
Its import takes a second, so this module imports it only when such a template is used. Very long
whitespace is masked before, since some patterns search it in quadratic time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from agentgym_rl.core import ConfigError
from agentgym_rl.gateway import (
    ChatFormat,
    Event,
    Parser,
    ParserFactory,
    Reasoning,
    ToolCall,
    call_formats,
    malformed,
)

from .xml_calls import properties_of, value_json

_LONGEST = 128
_MARKS = range(0xF0000, 0xFFFFE)
_MARK = f"[{chr(_MARKS[0])}-{chr(_MARKS[-1])}]"
_SUSPECT = re.compile(rf"\s{{{_LONGEST + 1}}}|{_MARK}")
_PIECE = re.compile(rf"\s+|{_MARK}|\S")
_ANY_MARK = re.compile(_MARK)


class LongSpaces:
    """A filter that replaces whitespace beyond 128 characters in a row by private characters.

    A confused model may write thousands of line breaks; a pattern that begins with `\\s*` takes
    minutes to find that nothing follows them.
    """

    def __init__(self) -> None:
        self._hidden: dict[str, str] = {}
        self._run = 0  # whitespace characters at the end of the text so far

    def hide(self, text: str) -> str:
        """Return the next piece of a text, with marks for long whitespace."""
        lead, tail = len(text) - len(text.lstrip()), len(text) - len(text.rstrip())
        if self._run + lead <= _LONGEST and not _SUSPECT.search(text):
            self._run = self._run + tail if tail == len(text) else tail
            return text
        return _PIECE.sub(self._hide, text)

    def show(self, text: str) -> str:
        """Return a text with its marks replaced by the original whitespace."""
        return _ANY_MARK.sub(lambda mark: self._hidden.get(mark[0], mark[0]), text)

    def _hide(self, piece: re.Match[str]) -> str:
        text = piece[0]
        if text.isspace():
            keep = max(_LONGEST - self._run, 0)
            self._run += len(text)
            return text[:keep] + (self._mark(text[keep:]) if len(text) > keep else "")
        self._run = 0
        return self._mark(text) if ord(text) in _MARKS else text

    def _mark(self, text: str) -> str:
        mark = chr(_MARKS[len(self._hidden) % len(_MARKS)])
        self._hidden[mark] = text
        return mark


REASONING = ("reasoning_content", "reasoning", "thinking")
_CALLS = "tool_calls"
_ANCHORS = ("open", "open_pattern", "close", "close_pattern")
_STEP = 1024
_STEP_SHARE = 32
"""The reciprocal share of the text in a step: transformers copies all earlier input at each step,
so steps grow with the text, up to 1024 characters, because the time is quadratic in a step."""


class ResponseTemplate:
    """A response template, checked once.

    Raises:
        ConfigError: transformers refuses it, or a reply has no place for one of its fields.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        try:
            from transformers.utils.chat_parsing import ResponseParser
            from transformers.utils.chat_parsing.content_parsers import process_field
            from transformers.utils.chat_parsing.response_templates import load_response_template
        except ImportError as error:
            raise ConfigError(
                "the tokenizer has a response_template, which this transformers cannot read "
                "(5.19 or newer can); upgrade it, or name another gateway.tool_parser"
            ) from error
        try:
            fields = load_response_template(dict(spec)).fields
            known = {"content", _CALLS, *REASONING}
            if unknown := sorted(set(fields) - known):
                raise ValueError(f"unknown fields {unknown}; known: {sorted(known)}")
            self._calls = fields.get(_CALLS)
            opened = self._calls.open_re if self._calls else None
            groups = tuple(opened.groupindex) if opened else ()
            self._with_calls = load_response_template(_as_text(spec, groups))
            self._without = load_response_template(_as_text(spec, None))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"the tokenizer's response_template: {error}") from error
        self.joins = {name: field.join or "" for name, field in fields.items()}
        self._open: Callable[..., Any] = ResponseParser
        self._process: Callable[..., Any] = process_field

    def stream(self, prompt_end: str, *, calls: bool) -> Any:
        """Return the parser of transformers, for a reply that continues `prompt_end`."""
        return self._open(self._with_calls if calls else self._without, prefix=prompt_end)

    def read(
        self, body: str, captures: Mapping[str, str], tools: Sequence[Mapping[str, Any]]
    ) -> list[ToolCall]:
        """Return the calls in one region of the text."""
        try:
            value = self._process(body, self._calls, dict(captures))
            values = value if isinstance(value, list) else [value]
            return [_call(body, each["function"], tools) for each in values]
        except (ValueError, TypeError, KeyError, RecursionError):
            found = malformed(body)
            return [replace(found, name=captures.get("name") or found.name)]


class ResponseTemplateParser(Parser):
    """A parser of reasoning, content and calls by a template; all but calls are streamed.

    A call that never closes is read as if it closed at the end. `tools`: None if calls are not to
    be read; they are content then.
    """

    def __init__(
        self,
        template: ResponseTemplate,
        tools: Sequence[Mapping[str, Any]] | None,
        prompt_end: str,
    ) -> None:
        self._template = template
        self._tools = tools
        self._stream = template.stream(prompt_end, calls=tools is not None)
        self._waiting: list[str] = []
        self._num_waiting = self._num_fed = 0
        self._spaces = LongSpaces()
        self._gap = ""
        self._with_text: set[str] = set()  # the fields that have text
        self._region = ""
        self._new = False  # the region has no text yet
        for event in self._stream.initial_events:
            self._region = "" if event["type"] == "region_close" else event["field"]
            self._new = bool(self._region)

    def feed(self, text: str) -> list[Event]:
        self._waiting.append(text)
        self._num_waiting += len(text)
        if self._num_waiting < min(self._num_fed // _STEP_SHARE, _STEP):
            return []
        return self._go_on()

    def finish(self, *, ended: bool = False) -> list[Event]:
        events = self._go_on()
        _, regions = self._stream.finalize()
        return events + self._events(regions)

    def _go_on(self) -> list[Event]:
        text = "".join(self._waiting)
        self._waiting, self._num_waiting = [], 0
        self._num_fed += len(text)
        events: list[Event] = []
        for at in range(0, len(text), _STEP):
            step = self._spaces.hide(text[at : at + _STEP])
            events += self._events(self._stream.feed(step))
        return events

    def _events(self, regions: Sequence[Mapping[str, Any]]) -> list[Event]:
        events: list[Event] = []
        for region in regions:
            name, kind = region["field"], region["type"]
            if kind == "region_open":
                self._region, self._new, self._gap = name, True, ""
            elif kind == "region_close":
                self._gap = ""
                if name == _CALLS:
                    body, captures = region["value"]["body"], region["value"]["captures"]
                    body = self._spaces.show(body)
                    events += self._template.read(body, captures, self._tools or ())
            elif name != _CALLS:
                events += self._text_in(name, self._spaces.show(region["text"]))
        return events

    def _text_in(self, name: str, text: str) -> list[Event]:
        """Return a piece of a text field; whitespace at a region's ends belongs to the format."""
        text = self._gap + (text.lstrip() if self._new else text)
        shown = text.rstrip()
        self._gap = text[len(shown) :]
        if not shown:
            return []
        if self._new and name in self._with_text:
            shown = self._template.joins[name] + shown
        self._new = False
        self._with_text.add(name)
        return [shown if name == "content" else Reasoning(shown)]


def _as_text(spec: Mapping[str, Any], groups: Sequence[str] | None) -> dict[str, Any]:
    """Return the template with its fields as plain text; calls are read once they have closed.
    transformers raises on text that it cannot read, and the rest of the reply would be lost.

    `groups`: the named groups of the pattern that opens a call; None omits calls.
    """
    fields: dict[str, Any] = {}
    for name, field in spec["fields"].items():
        if name == _CALLS and groups is None:
            continue
        fields[name] = {key: value for key, value in field.items() if key in _ANCHORS} | {
            "content": "text",
            "content_args": {"strip": False},
            "transform": {"body": "{content}"},
        }
    if groups is not None and _CALLS in fields:
        captures = {name: f"{{{name}}}" for name in groups}
        fields[_CALLS]["transform"] = {"body": "{content}", "captures": captures}
    return {**spec, "fields": fields}


def _call(body: str, function: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> ToolCall:
    """Return the call that transformers read, with the argument text of `body` if found there."""
    name, arguments = function["name"], function.get("arguments")
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("no name, or no object of arguments")
    for text in (body.strip(), *_raw_values(body)):
        if _loads(text) == arguments:
            return ToolCall(name, text)
    properties = properties_of(tools, name)
    pairs = (
        f"{json.dumps(key, ensure_ascii=False)}: "
        + (
            value_json(value, properties.get(key))
            if isinstance(value, str)
            else json.dumps(value, ensure_ascii=False, allow_nan=False)
        )
        for key, value in arguments.items()
    )
    return ToolCall(name, "{" + ", ".join(pairs) + "}")


def _raw_values(body: str) -> list[str]:
    """Return the values of a JSON object as raw text; empty if `body` is not an object."""
    try:
        raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        return [bytes(value).decode() for value in raw.values()]
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def parsers_of(chat: ChatFormat) -> ParserFactory:
    """Return parsers of the replies of a model whose tokenizer has a response template.

    Raises:
        ConfigError: it has none, or none that can be used.
    """
    spec = chat.template.response_template
    if spec is None:
        raise ConfigError(
            "gateway.tool_parser is 'response_template', but the model's tokenizer_config.json "
            f"has none; allowed: auto, {', '.join(call_formats())}, none"
        )
    return partial(ResponseTemplateParser, ResponseTemplate(spec))
