"""A model's chat template: it turns messages into text exactly as transformers renders it.

An import of transformers would cost seconds and load torch. This module is therefore plain jinja2
plus the additions of transformers (`generation` blocks, `raise_exception`, `strftime_now`, loop
controls, its own `tojson`). Tests compare it with `transformers.apply_chat_template`.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, meta

from agentgym_rl.core import ConfigError, read_json, template_files
from agentgym_rl.core.model_folder import read_small
from agentgym_rl.gateway.messages import REASONING

from .sandbox import Environment
from .special_tokens import special_tokens
from .steps import STEPS, EndlessTemplate, Steps, endless, joined

RESERVED = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("conversation", "chat_template", "tokenize", "strftime_now", "raise_exception"),
    }
)
"""The names that a client's template arguments may not have."""
NO_KWARGS: Mapping[str, Any] = {}
SENTINEL = f"said{secrets.token_hex(8)}"
"""A stand-in for the sampled text. No text can contain it, since each process draws it at
random."""
OPENING: Mapping[str, Any] = {"role": "user", "content": "."}
_REFUSALS = (
    *(TemplateError, TypeError, LookupError, AttributeError, ArithmeticError),
    RecursionError,
)
"""The errors of templates, intended or not, for input that they do not support."""
_LONGEST = 1_000_000
"""The maximum length of a template; known ones have up to 40,000 characters."""


class ChatTemplate:
    """A compiled chat template with the special tokens it may use.

    `response_template`: the format of replies (transformers 5), if the tokenizer defines it.
    `tool_use`: the template of conversations with tools, if it is a different one. `now`: the date
    and time that it writes; None: that of each rendering.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str],
        response_template: Mapping[str, Any] | None = None,
        tool_use: ChatTemplate | None = None,
        now: datetime | None = None,
    ) -> None:
        self.source = source
        self.response_template = response_template
        self.tool_use = tool_use
        if len(source) > _LONGEST:
            raise ConfigError(
                f"the chat template has {len(source):,} characters, more than {_LONGEST:,}"
            )
        environment = Environment(now)
        try:
            self._template = environment.from_string(source)
            # not a ChainMap, which every rendering would search
            self._template.globals = dict(self._template.globals)
            named = meta.find_undeclared_variables(environment.parse(source))
        except (*_REFUSALS, ValueError, SyntaxError, MemoryError) as error:
            raise ConfigError(f"the chat template does not compile: {error}") from error
        self.special_tokens = dict(special_tokens)
        """The special tokens by name."""
        self.variables = frozenset(named)
        """The names that the template uses; other arguments have no effect."""

    @classmethod
    def load(cls, folder: Path, name: str = "auto", *, now: datetime | None = None) -> ChatTemplate:
        """Load the template of a model folder: from its files, else from tokenizer_config.json,
        else from chat_template.json. If there are several, take the one with the given name; "auto"
        is `default`, and `tool_use` for conversations with tools.

        Raises:
            ConfigError: the folder has no chat template of that name, or it does not compile, never
                ends, or writes none of the users' text.
        """
        tokenizer_config = read_json(folder / "tokenizer_config.json")
        files = template_files(folder)
        named: Any = {name: read_small(file) for name, file in files.items()}
        named = named or tokenizer_config.get("chat_template")
        named = named or read_json(folder / "chat_template.json").get("chat_template") or {}
        if isinstance(named, str):
            named = {"default": named}
        elif isinstance(named, list):
            named = _by_name(folder, named)
        elif not isinstance(named, dict):
            raise ConfigError(f"{folder}: chat_template is a {type(named).__name__}, no text")
        source = named.get("default", named.get("tool_use")) if name == "auto" else named.get(name)
        if not isinstance(source, str):
            raise ConfigError(_missing(folder, name, list(named)))
        tooled = named.get("tool_use", source) if name == "auto" else source
        template = cls(
            source,
            special_tokens={},
            response_template=tokenizer_config.get("response_template"),
            tool_use=None if tooled == source else cls(tooled, special_tokens={}, now=now),
            now=now,
        )
        both = [template, *([template.tool_use] if template.tool_use else [])]
        wanted = frozenset[str]().union(*(each.variables for each in both))
        for each in both:
            each.special_tokens = special_tokens(folder, wanted)
        for each in both:
            try:
                shown = each.render([{**OPENING, "content": SENTINEL}])
            except EndlessTemplate:
                raise
            except ValueError:  # it may refuse this conversation
                continue
            if SENTINEL not in shown:
                raise ConfigError(
                    f"{folder}: the chat template does not write a user's message; it is made for "
                    "other input than chat messages"
                )
        return template

    def mentions(self, text: str) -> bool:
        """Return whether the source, or that of `tool_use`, contains a text."""
        tooled = self.tool_use is not None and self.tool_use.mentions(text)
        return tooled or text in self.source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] = NO_KWARGS,
    ) -> str:
        """Render the conversation as text; `kwargs` are the template's own arguments.

        Raises:
            EndlessTemplate: the template does not end with these messages.
            ValueError: the template refuses these messages.
        """
        plain = [_for_template(message) for message in messages]
        if self._takes_parts:
            plain = [_in_parts(message) for message in plain]
        return self._rendered(plain, tools, add_generation_prompt, kwargs)

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] = NO_KWARGS,
    ) -> str:
        context = self._template.new_context(
            {
                **self.special_tokens,
                **kwargs,
                "messages": messages,
                "tools": tools or None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
                STEPS: Steps(messages),
            }
        )
        try:
            return joined(self._template.root_render_func(context))
        except _REFUSALS as error:
            raise ValueError(f"the chat template refuses these messages: {error}") from error
        except MemoryError as error:
            raise endless("more memory than there is") from error
        finally:
            context.vars.clear()  # macros and their context refer to each other

    @functools.cached_property
    def _takes_parts(self) -> bool:
        """Return whether contents must be lists of parts, since the template does not write
        texts."""
        question = {**OPENING, "content": SENTINEL}
        try:
            if SENTINEL in self._rendered([question]):
                return False
            return SENTINEL in self._rendered([_in_parts(question)])
        except ValueError:
            return False


def _missing(folder: Path, name: str, others: list[str]) -> str:
    if others:
        hint = "choose one by gateway.chat_template" if name == "auto" else "or auto"
        return (
            f"gateway.chat_template is {name!r}, and {folder} has no such chat template; it has "
            f"only templates named {', '.join(others)}: {hint}"
        )
    return (
        f"{folder} has no chat template (chat_template.jinja, or chat_template in "
        "tokenizer_config.json); a base model does not take chat messages: take its instruct "
        "version, or put a chat_template.jinja there"
    )


def _by_name(folder: Path, entries: Sequence[Any]) -> dict[str, Any]:
    """Return the templates of a list of objects with name and template."""
    try:
        return {entry["name"]: entry["template"] for entry in entries}
    except (TypeError, LookupError) as error:
        raise ConfigError(
            f"{folder}: an entry of chat_template in tokenizer_config.json has no name and template"
        ) from error


def _for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with absent keys instead of null, and standard names for its thoughts."""
    plain = {key: value for key, value in message.items() if value is not None}
    reasoning = next((plain[name] for name in REASONING if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


def _in_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, str):
        return dict(message)
    return {**message, "content": [{"type": "text", "text": content}]}
