"""Grammars of replies in a model's format: only replies that its parser reads as requested."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from agentgym_rl.core import Choices
from agentgym_rl.gateway import Grammars, ModelFormat, call_formats, not_forced
from agentgym_rl.gateway.request.reply_form import ReplyForm
from agentgym_rl.runtime import GrammarCompiler

from .lark import Lark

_log = logging.getLogger(__name__)

_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
"""The parameters of a function that declares none: it accepts none."""


class LarkGrammars(Grammars):
    """The grammars of one model, in Lark as llguidance reads it."""

    def __init__(self, model: ModelFormat) -> None:
        super().__init__(model)
        self._warned = False

    def of(self, form: ReplyForm, prompt_end: str) -> str:
        self._check(form)
        try:
            return self._written(Lark(self.model.chat.added_tokens), form, prompt_end)
        except ValueError as error:
            raise not_forced(form, str(error)) from error

    def choices(self, grammar: str, tokens: Sequence[int]) -> Choices | None:
        try:
            found = self._compiler.begin(grammar).choices(tokens)
            why = "it sampled a token that the grammar, as read here, does not allow"
        except ValueError as error:
            found, why = None, str(error)
        if found is None and not self._warned:
            self._warned = True
            _log.warning("a turn that an engine held to a grammar does not train: %s", why)
        return found

    @cached_property
    def _compiler(self) -> GrammarCompiler:
        chat = self.model.chat
        return GrammarCompiler(
            chat.tokenizer_json, vocab_size=chat.vocab_size, eos_ids=chat.stop_token_ids
        )

    def _written(self, lark: Lark, form: ReplyForm, prompt_end: str) -> str:
        choices = [lark.json(form.schema)] if form.schema is not None else []
        if form.tools:
            choices.append(self._calls(lark, form))
        body = lark.any_of(choices)
        parts = [self._thinking(lark, prompt_end), body, self._end(lark)]
        return lark.written(" ".join(filter(None, parts)))

    def _check(self, form: ReplyForm) -> None:
        family, format = self.model.family, self.model.calls
        if format is not None and format.unforced:
            raise not_forced(form, format.unforced)
        if form.tools and (format is None or format.grammar is None):
            known = [name for name, one in call_formats().items() if one.grammar]
            why = (
                f"no grammar is known for this model's format of calls ({family})"
                if format
                else "no format of tool calls is known for this model; set gateway.tool_parser"
            )
            raise not_forced(form, f"{why}; those with a grammar: {', '.join(known)}")
        if form.tools and form.schema is not None and format is not None and format.object_is_call:
            raise not_forced(
                form,
                f"in this model's format ({family}) JSON may be a call: with tools use "
                "tool_choice 'none' or 'required'",
            )

    def _calls(self, lark: Lark, form: ReplyForm) -> str:
        format = self.model.calls
        assert format is not None  # see _check
        form_of = format.grammar
        if format.newer is not None and lark.knows(format.newer[0]):
            form_of = format.newer[1]
        assert form_of is not None
        calls = [form_of.call(lark, *_function(tool)) for tool in form.tools]
        call = lark.rule(lark.any_of(calls))
        between = f"{lark.exactly(form_of.between)} " if form_of.between else ""
        several = call if form.one_call else f"({call} ({between}{call})*)"
        ends = (form_of.before, form_of.after)
        before, after = (lark.exactly(text) if text else "" for text in ends)
        return " ".join(filter(None, (before, several, after)))

    def _thinking(self, lark: Lark, prompt_end: str) -> str:
        """Return the expression of free thoughts before the reply; "" if there can be none."""
        thoughts = self.model.thoughts
        if thoughts is None or prompt_end.rstrip().endswith(thoughts.closes):
            return ""
        rest = f"{lark.text_to(thoughts.closes[0])} /\\n{{0,2}}/"
        if thoughts.opened(prompt_end):
            return rest
        return f"({lark.exactly(thoughts.opens[0])} {rest})?"

    def _end(self, lark: Lark) -> str:
        """Return the template's end of a turn; if it has none, the engine knows its own."""
        chat = self.model.chat
        ends = chat.stop_token_ids if chat.close_id is None else (chat.close_id,)
        return lark.any_of([lark.token(id) for id in ends]) if ends else ""


def _function(tool: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    function = tool["function"]
    parameters = function.get("parameters")
    parameters = _NO_PARAMETERS if parameters is None else parameters
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        name = function["name"]
        raise ValueError(f"the parameters of {name!r} must be a schema of an object")
    return function["name"], {**parameters, "type": "object"}
