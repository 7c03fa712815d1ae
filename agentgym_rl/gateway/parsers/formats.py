"""The formats in which models write calls, and their registry: the group `agentgym_rl.parsers` of
entry points, in which installed packages register families of models.

The format of the bundled models is in `json_calls.py`; ours of other families are those of
`extensions/arl_parsers`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from agentgym_rl.core import Ordered, in_order
from agentgym_rl.gateway.template.chat_format import ChatFormat

from .parser import BlockParser, Frame, Parser, ParserFactory, Read, TextParser, Tools

PARSERS = "parsers"
"""The group of entry points."""


class GrammarText(ABC):
    """A grammar under construction: its methods return expressions of it.

    Raises:
        ValueError: (all methods) the grammar cannot express it.
    """

    @abstractmethod
    def exactly(self, text: str) -> str:
        """Return an expression for exactly this text."""

    @abstractmethod
    def json(self, schema: Mapping[str, Any]) -> str:
        """Return an expression for JSON that is valid under `schema`."""

    @abstractmethod
    def text_to(self, end: str, *barred: str) -> str:
        """Return an expression for text, possibly empty, that ends with the first `end`, and that
        contains none of `barred`."""

    @abstractmethod
    def any_of(self, choices: Sequence[str]) -> str:
        """Return an expression for one of these expressions."""


CallGrammar = Callable[[GrammarText, str, Mapping[str, Any]], str]
"""A function that returns the expression of a call with the given name and argument schema."""


class Calls(NamedTuple):
    """The grammar of one call, and the texts before, between and after the calls of a reply."""

    call: CallGrammar
    before: str = ""
    between: str = "\n"
    after: str = ""


@dataclass(frozen=True, kw_only=True)
class Format(Ordered):
    """A format of replies with calls.

    A member of the group. `order`: its place among those that are tried on a template's call.
    `make`: makes the parser of one reply without thoughts; None: there is only `whole`. `mention`:
    a text that marks its chat templates. `whole`: makes parsers of replies for a model, in formats
    that define thoughts themselves; it raises ConfigError if the model does not fit.

    `grammar`: None if there is none; `newer`: a tag and the grammar of models whose tokenizer has
    it; `object_is_call`: whether a JSON object may be a call; `unforced`: the reason why no reply
    can be forced into a form, for errors.
    """

    make: Callable[[Tools], Parser] | None = None
    mention: str = ""
    whole: Callable[[ChatFormat], ParserFactory] | None = None
    grammar: Calls | None = None
    newer: tuple[str, Calls] | None = None
    object_is_call: bool = False
    unforced: str = ""
    order: int = Ordered.order

    def __call__(self, tools: Tools) -> Parser:
        """Return the parser of one reply."""
        return self.make(tools) if self.make else TextParser()


def block_format(frame: Frame, read: Read, *, mention: str = "", **others: Any) -> Format:
    """Return the format of calls in blocks; its `mention` is the first tag if it is not given."""
    mention = mention or next(iter(frame.pairs))
    return Format(make=partial(BlockParser, frame, read), mention=mention, **others)


def call_formats() -> Mapping[str, Format]:
    """Return the installed formats by name, in the order in which a template's call is tried:
    those in which the text alone marks calls."""
    return {name: one for name, one in in_order(PARSERS, of=Format).items() if one.make}
