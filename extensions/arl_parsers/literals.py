"""Calls in the notation of a language: Python's, and Gemma's.

    [calculator(expression="3*4", precise=True)]                  Llama 3.2 and 4, LFM2
    call:calculator{expression:<escape>3*4<escape>,precise:true}  Gemma

Nothing is evaluated: a reader of tokens writes the values as JSON. Numbers keep their spelling.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from agentgym_rl.gateway import Read, ToolCall, Tools
from agentgym_rl.runtime import parse_python

from .xml_calls import is_json, properties_of, value_json

MAX_DEPTH = 64
_CLOSERS = {"[": "]", "(": ")", "{": "}"}
_PYTHON = re.compile(
    r"""\s*+(?:(?P<string>"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')"""
    r"|(?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?))"
    r"|(?P<word>[A-Za-z_][\w.]*)|(?P<mark>[\[\](){},:=]))",
    re.DOTALL,
)
_CALLED = re.compile(r"\s*+\[\s*+([A-Za-z_][\w.]*)")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_WORDS |= {word: word for word in _WORDS.values()}
_BREAK = re.compile(r"(\\.)|\n", re.DOTALL)


class Tokens:
    """The tokens of a text, one ahead.

    Raises:
        ValueError: (all methods) the text is not in the notation.
    """

    def __init__(self, text: str, pattern: re.Pattern[str], scalar: Callable[..., str]) -> None:
        self._text = text.rstrip()
        self._pattern = pattern
        self._scalar = scalar
        self._end = 0
        self.kind = self.text = ""
        self.next()

    def next(self) -> str:
        """Return the present token, and go on to the next; its kind is "" at the end."""
        text = self.text
        found = self._pattern.match(self._text, self._end)
        if not found and self._end < len(self._text):
            raise ValueError(f"no token at character {self._end}")
        self.kind = str(found.lastgroup) if found else ""
        self.text = found[self.kind] if found else ""
        self._end = found.end() if found else self._end
        return text

    def takes(self, mark: str) -> bool:
        """Go on if the present token is `mark`; return whether it was."""
        taken = self.kind == "mark" and self.text == mark
        if taken:
            self.next()
        return taken

    def take(self, mark: str) -> None:
        """Go on from `mark`."""
        if not self.takes(mark):
            raise ValueError(f"{mark!r} expected, got {self.text!r}")

    def items(self, close: str, read: Callable[[], str]) -> list[str]:
        """Return the items up to a closing bracket, separated by commas; the last may have one."""
        found: list[str] = []
        while not self.takes(close):
            found.append(read())
            if not self.takes(","):
                self.take(close)
                break
        return found

    def value(self, depth: int = 0) -> str:
        """Return the present value as JSON."""
        if self.kind != "mark":
            return self._scalar(self)
        opened = self.next()
        if opened not in _CLOSERS or depth > MAX_DEPTH:
            raise ValueError(f"no value begins with {opened!r}, or it is nested too deeply")
        if opened == "{":
            return "{" + ", ".join(self.items("}", lambda: self.pair(depth))) + "}"
        items = self.items(_CLOSERS[opened], lambda: self.value(depth + 1))
        return "[" + ", ".join(items) + "]"

    def pair(self, depth: int) -> str:
        """Return a key and its value."""
        if self.kind not in ("string", "bare"):
            raise ValueError(f"a key expected, got {self.text!r}")
        key = self._scalar(self, key=True)
        self.take(":")
        return f"{key}: {self.value(depth + 1)}"


def _quoted(text: str) -> str:
    """Return a text as JSON, with surrogate pairs joined and unpaired surrogates replaced."""
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return json.dumps(whole, ensure_ascii=False)


def _value(text: str) -> Any:
    return ast.literal_eval(parse_python(text, "eval"))


def _python_scalar(tokens: Tokens, key: bool = False) -> str:
    kind, text = tokens.kind, tokens.next()
    if kind == "string":
        # a string may have line breaks, which Python would not allow
        return _quoted(_value(_BREAK.sub(lambda found: found[1] or "\\n", text)))
    if kind == "number":
        return text if is_json(text) else json.dumps(_value(text))
    if text in _WORDS:
        return _WORDS[text]
    raise ValueError(f"no value is spelled {text!r}")


def read_calls(text: str) -> list[ToolCall] | None:
    """Return the calls of a Python list of calls with named arguments; None if the text is not such
    a list."""
    try:
        tokens = Tokens(text, _PYTHON, _python_scalar)
        tokens.take("[")
        calls: list[ToolCall] = []

        def call() -> str:
            name = tokens.next() if tokens.kind == "word" else ""
            tokens.take("(")
            calls.append(ToolCall(name, "{" + ", ".join(tokens.items(")", argument)) + "}"))
            return name

        def argument() -> str:
            key = tokens.next() if tokens.kind == "word" else ""
            tokens.take("=")
            return f"{json.dumps(key, ensure_ascii=False)}: {tokens.value()}"

        names = tokens.items("]", call)
        return calls if names and all(names) and not tokens.kind else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def read_block(block: str, tools: Tools = ()) -> list[ToolCall]:
    """Return the calls of a block that holds such a list."""
    called = _CALLED.match(block)
    return read_calls(block) or [ToolCall(called[1] if called else "", block.strip(), True)]


def gemma(delimiter: str) -> Read:
    """Return a reader of Gemma's calls, in which `delimiter` stands around strings."""
    mark = re.escape(delimiter)
    pattern = re.compile(
        rf"\s*+(?:{mark}(?P<string>.*?){mark}|(?P<mark>[\[\]{{}},:])"
        rf"|(?P<bare>(?:(?!{mark})[^\[\]{{}},:])++))",
        re.DOTALL,
    )

    def scalar(tokens: Tokens, key: bool = False) -> str:
        is_text, text = tokens.kind == "string", tokens.next()
        if is_text or key:
            return _quoted(text if is_text else text.strip())
        return text.strip() if is_json(text.strip()) else _quoted(text.strip())

    def read(block: str, tools: Tools = ()) -> list[ToolCall]:
        head, brace, body = block.strip().partition("{")
        name = head.removeprefix("call:").strip()
        try:
            if not brace or not name or name == head or "\n" in name:
                raise ValueError("no name")
            tokens = Tokens(body, pattern, scalar)
            typed = _typed(tokens, properties_of(tools, name))
            arguments = "{" + ", ".join(tokens.items("}", typed)) + "}"
            if tokens.kind:
                raise ValueError("text after the arguments")
            return [ToolCall(name, arguments)]
        except (ValueError, RecursionError):
            return [ToolCall(name if brace else "", block.strip(), malformed=True)]

    return read


def _typed(tokens: Tokens, properties: Mapping[str, Any]) -> Callable[[], str]:
    """Return a reader of pairs whose values without quotes have the type of the schema."""

    def read() -> str:
        if tokens.kind not in ("bare", "string"):
            raise ValueError(f"a key expected, got {tokens.text!r}")
        key = tokens.next().strip()
        tokens.take(":")
        written = f"{json.dumps(key, ensure_ascii=False)}: "
        if tokens.kind == "bare" and key in properties:
            return written + value_json(tokens.next().strip(), properties[key])
        return written + tokens.value()

    return read
