"""Grammars of replies in a model's format: only replies that its parser reads as requested."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentgym_rl.gateway.errors import ApiError, unsupported
from agentgym_rl.gateway.request.chat_request import ReplyForm
from agentgym_rl.gateway.template.chat_format import ChatFormat

from . import hermes, llama3_json, qwen3_coder_xml
from .lark import Lark
from .think import CLOSE, OPEN

CallGrammar = Callable[[Lark, str, Mapping[str, Any]], str]
"""A function that returns the expression of a call with the given name and argument schema."""

_CALLS: Mapping[str, tuple[CallGrammar, str]] = {
    "hermes": (hermes.call_grammar, "\n"),
    "qwen3_xml": (qwen3_coder_xml.call_grammar, "\n"),
    "llama3_json": (llama3_json.call_grammar, "; "),
}
"""The grammar of a call and the separator of two calls, by family."""

_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
"""The parameters of a function that declares none: it accepts none."""


class Grammars:
    """The grammars of one model. `family`: its call format; `thinks`: if `think` tags count."""

    def __init__(self, chat: ChatFormat, *, family: str, thinks: bool) -> None:
        self._chat = chat
        self._family = family
        self._thinks = thinks

    def of(self, form: ReplyForm, prompt_end: str) -> str:
        """Return the grammar of a complete reply, including its end token. `prompt_end`: the end of
        the prompt as text; thoughts, if the model has any, come first and are free.

        Raises:
            ApiError: 400, the model's format does not allow it.
        """
        self._check(form)
        try:
            return self._written(Lark(self._chat.added_tokens), form, prompt_end)
        except ValueError as error:
            raise _refused(form, str(error)) from error

    def _written(self, lark: Lark, form: ReplyForm, prompt_end: str) -> str:
        choices = [lark.json(form.schema)] if form.schema is not None else []
        if form.tools:
            choices.append(self._calls(lark, form))
        body = lark.any_of(choices)
        parts = [self._thoughts(lark, prompt_end), body, self._end(lark)]
        return lark.written(" ".join(filter(None, parts)))

    def _check(self, form: ReplyForm) -> None:
        if self._family == "response_template":
            raise _refused(
                form,
                "the model's replies are read by its response template, and no grammar can be "
                "derived from that; set gateway.tool_parser",
            )
        if form.tools and self._family not in _CALLS:
            raise _refused(
                form,
                "no format of tool calls is known for this model; set gateway.tool_parser: "
                + ", ".join(_CALLS),
            )
        if form.tools and form.schema is not None and self._family == "llama3_json":
            raise _refused(
                form,
                "in this model's format (llama3_json) JSON may be a call: with tools use "
                "tool_choice 'none' or 'required'",
            )

    def _calls(self, lark: Lark, form: ReplyForm) -> str:
        write, between = _CALLS[self._family]
        calls = [write(lark, *_function(tool)) for tool in form.tools]
        call = lark.rule(lark.any_of(calls))
        return call if form.one_call else f"({call} ({lark.exactly(between)} {call})*)"

    def _thoughts(self, lark: Lark, prompt_end: str) -> str:
        end = prompt_end.rstrip()
        if not self._thinks or end.endswith(CLOSE):
            return ""
        rest = f"{lark.text_to(CLOSE)} /\\n{{0,2}}/"
        return rest if end.endswith(OPEN) else f"({lark.exactly(OPEN)} {rest})?"

    def _end(self, lark: Lark) -> str:
        """Return the template's end of a turn; if it has none, the engine knows its own."""
        chat = self._chat
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


def _refused(form: ReplyForm, why: str) -> ApiError:
    return unsupported(form.param, why)
