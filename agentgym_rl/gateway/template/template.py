"""A model's chat template: it turns messages into text exactly as transformers renders it.

An import of transformers would cost seconds and load torch. This module is therefore plain jinja2
plus the additions of transformers (`generation` blocks, `raise_exception`, `strftime_now`, loop
controls, its own `tojson`). Tests compare it with `transformers.apply_chat_template`.
"""

from __future__ import annotations

import functools
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, meta, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.model_folder import template_files
from agentgym_rl.gateway.messages import REASONING

RESERVED = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("conversation", "chat_template", "tokenize", "strftime_now", "raise_exception"),
    }
)
"""The names that a client's template arguments may not have."""
NO_KWARGS: Mapping[str, Any] = {}
SENTINEL = f"said{secrets.token_hex(8)}"
"""A stand-in for the sampled text. No text can contain it: each process draws it anew."""
OPENING: Mapping[str, Any] = {"role": "user", "content": "."}
_REFUSALS = (
    *(TemplateError, TypeError, LookupError, AttributeError, ArithmeticError),
    RecursionError,
)
"""The errors of templates, intended or not, for input that they do not support."""
MAX_TURNS = 2_000_000
"""The limit of loop turns in one rendering, about a second of the event loop. A conversation of a
thousand messages takes about ten thousand."""
_MACRO = 5
"""The number of turns that one call of a macro counts for."""
_FEW = 100
"""The size up to which a loop's items are counted at once: a longer loop may be left early."""
_MAX_DIGITS = 100_000
"""The maximum number of binary digits of a power."""
_MAX_LENGTH = 100_000_000
"""The maximum length of a text or list made by multiplication."""
_TURNS = " turns"
"""The variable with the turns left; no template can use this name."""


class EndlessTemplate(ConfigError):
    """An error for a template that does not end, or not in time, with the given messages."""


class ChatTemplate:
    """A compiled chat template with the special tokens it may use.

    `response_template`: the format of replies (transformers 5), if the tokenizer defines it.
    `tool_use`: the template of conversations with tools, if it is a different one.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str],
        response_template: Mapping[str, Any] | None = None,
        tool_use: ChatTemplate | None = None,
    ) -> None:
        self.source = source
        self.response_template = response_template
        self.tool_use = tool_use
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            # not a ChainMap, which every rendering would search
            self._template.globals = dict(self._template.globals)
            named = meta.find_undeclared_variables(environment.parse(source))
        except TemplateError as error:
            raise ConfigError(f"the chat template does not compile: {error}") from error
        self._special_tokens = dict(special_tokens)
        self.variables = frozenset(named)
        """The names that the template uses; other arguments have no effect."""

    @classmethod
    def load(cls, folder: Path, name: str = "auto") -> ChatTemplate:
        """Load the template of a model folder: from its files, else from tokenizer_config.json. If
        there are several, take the one with the given name; "auto" is `default`, and `tool_use` for
        conversations with tools.

        Raises:
            ConfigError: the folder has no chat template of that name, or it does not compile, never
                ends, or writes nothing of what users say.
        """
        tokenizer_config = read_json(folder / "tokenizer_config.json")
        files = template_files(folder)
        named: Any = {name: file.read_text(encoding="utf-8") for name, file in files.items()}
        named = named or tokenizer_config.get("chat_template") or {}
        if isinstance(named, str):
            named = {"default": named}
        elif isinstance(named, list):
            named = {entry["name"]: entry["template"] for entry in named}
        source = named.get("default", named.get("tool_use")) if name == "auto" else named.get(name)
        if not isinstance(source, str):
            raise ConfigError(_missing(folder, name, list(named)))
        special_tokens = _special_tokens(tokenizer_config)
        tooled = named.get("tool_use", source) if name == "auto" else source
        template = cls(
            source,
            special_tokens=special_tokens,
            response_template=tokenizer_config.get("response_template"),
            tool_use=None if tooled == source else cls(tooled, special_tokens=special_tokens),
        )
        for each in filter(None, (template, template.tool_use)):
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
        try:
            return self._template.render(
                {
                    **self._special_tokens,
                    **kwargs,
                    "messages": messages,
                    "tools": tools or None,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                    _TURNS: [MAX_TURNS],
                }
            )
        except _REFUSALS as error:
            raise ValueError(f"the chat template refuses these messages: {error}") from error

    @functools.cached_property
    def _takes_parts(self) -> bool:
        """Return whether contents must be lists of parts, since texts are not written."""
        asked = {**OPENING, "content": SENTINEL}
        try:
            if SENTINEL in self._rendered([asked]):
                return False
            return SENTINEL in self._rendered([_in_parts(asked)])
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
        "tokenizer_config.json); a base model does not take chat messages"
    )


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file; return an empty one if there is no such file."""
    return json.loads(file.read_text()) if file.exists() else {}


def _special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in tokenizer_config.items():
        if name.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[name] = text
    return found


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


class _Generation(Extension):
    """The `{% generation %}…{% endgeneration %}` block around model text; it is transparent."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance attribute)

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> str:
        return caller()


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox with faster access to keys of plain dicts and to templates' own macros, which is
    safe. Its renderings end, because turns of loops and calls are counted."""

    intercepted_binops = frozenset({"*", "**"})

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        for loop in source.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "counted turns", [], [], None, None)
        return super()._generate(source, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            are_ints = isinstance(left, int) and isinstance(right, int)
            if are_ints and left.bit_length() * right > _MAX_DIGITS:
                raise TemplateError(f"{left} ** {right} is too large")
        else:
            for many, times in ((left, right), (right, left)):
                is_long = isinstance(times, int) and isinstance(many, str | list | tuple)
                if is_long and len(many) * times > _MAX_LENGTH:  # pyright: ignore
                    raise TemplateError(f"{times} times a text or list is too long")
        return super().call_binop(context, operator, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute not in _OF_DICTS:
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _spend(__context, _MACRO if type(__obj) is Macro else 1)
        if type(__obj) is Macro:
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return __obj(__context.eval_ctx, *args, **kwargs)
        return super().call(__context, __obj, *args, **kwargs)


_OF_DICTS = frozenset(dir(dict))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.filters["counted turns"] = _counted
    del environment.globals["lipsum"]  # generates endless text
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # unlike jinja2's own filter, this one does not escape HTML
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _spend(context: Context, turns: int) -> None:
    """Count turns of loops, or calls.

    Raises:
        EndlessTemplate: the rendering has taken too many turns.
    """
    left = context.parent[_TURNS]
    left[0] -= turns
    if left[0] < 0:
        raise EndlessTemplate(
            f"the chat template has made {MAX_TURNS:,} turns of its loops and macros for one "
            "rendering, and seems never to end: give the model's folder a chat template that ends"
        )


@pass_context
def _counted(context: Context, items: Any) -> Any:
    """Return the items of a loop, with its turns counted."""
    if isinstance(items, list | tuple | str | dict) and len(items) <= _FEW:  # pyright: ignore
        _spend(context, len(items))  # pyright: ignore
        return items  # pyright: ignore
    return _counting(context, items)


def _counting(context: Context, items: Any) -> Iterator[Any]:
    for item in items:
        _spend(context, 1)
        yield item


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
